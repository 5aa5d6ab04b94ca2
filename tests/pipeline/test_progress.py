"""What a terminal shows: lines of the log stand above the live lines, never in them."""

import logging
import os
import pty
import re
import subprocess
import sys
import time

from pipeline.pace import Pace
from pipeline.progress import facts, line, summary
from pipeline.work import OpenLease, Progress
from pipeline.writer import Lease
from tests.integration.conftest import REPOSITORY

SHOWN = """
import logging, sys, time
from rich.console import Console
from pipeline.progress import Display
from pipeline.work import Progress

logging.basicConfig(format="%(message)s", stream=sys.stderr)
with Display(Console(stderr=True, highlight=False)) as display:
    for done in range(3):
        display.show(Progress(total=3, already_done=0, token_budget=16_384, done=done))
        time.sleep(0.3)
        logging.warning("a line of the log")
logging.warning("after the display")
"""


def on_a_terminal(code: str) -> str:
    """What a program writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 65536):
                said += chunk
        except OSError:
            logging.debug("the terminal's other end is closed: the program ended")
        finally:
            os.close(ours)
    assert process.returncode == 0
    return said.decode()


def test_log_lines_stand_on_lines_of_their_own():
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_a_terminal(SHOWN))
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain)]
    assert lines.count("a line of the log") == 3
    assert lines.count("after the display") == 1
    assert any(line.startswith("shards") and "2 of 3" in line for line in lines)


def test_a_line_has_rejects_and_a_slow_shard_while_they_are_open():
    progress = Progress(total=9, already_done=1, token_budget=16_384, done=2, read=20, embedded=19)
    progress.rejected.update(empty_image=1)
    progress.open_rejected.update(empty_image=2, decode_error=4)
    progress.open_images = 30
    now = time.monotonic()
    leases = [
        OpenLease(lease=Lease(url=f"s3://b/in/{age}.tar"), since=now - age, images=30)
        for age in (95, 70, 1)
    ]
    pace = Pace()
    for seconds, progress.oldest in ((-12, []), (0, leases[2:]), (0, leases)):
        pace.add(progress, now + seconds)
        progress.tokens += 16
        said = line(progress, pace)
        if progress.oldest != leases:
            assert "open for long" not in said
    assert said.startswith("shards 3/9, images 56 (0.0/s), tokens ")
    assert "rejects decode_error 4, empty_image 3" in said
    assert "open for long 95.tar 95 s, 30 images" in said
    told = facts(progress)
    assert told["rejected"] == {"empty_image": 1}
    assert told["open_rejected"] == {"empty_image": 2, "decode_error": 4}
    assert [lease["shard"] for lease in told["open_longest"]] == [o.lease.shard for o in leases]


def test_the_summary_counts_what_is_published():
    progress = Progress(total=1, already_done=0, token_budget=16, done=1, read=5, embedded=4)
    progress.rejected.update(no_image=1)
    progress.open_rejected.update(no_image=7)
    assert "5 images read = 4 embedded + 1 rejected (no_image 1)" in summary(progress, "out")
