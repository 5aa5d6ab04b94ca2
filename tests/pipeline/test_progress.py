"""What a terminal shows: lines of the log stand above the live lines, never in them."""

import logging
import os
import pty
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from pipeline.heartbeat import LeaseState
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


def an_open_lease(name, age_s, **told):
    return OpenLease(
        lease=Lease(url=f"s3://b/in/{name}.tar"), began=time.monotonic() - age_s, **told
    )


def test_a_line_has_rejects_while_their_shards_are_open():
    progress = Progress(total=9, already_done=1, token_budget=16_384, done=2, read=20, embedded=19)
    progress.rejected.update(empty_image=1)
    progress.open["a"] = an_open_lease("a", 9, images=30, rejected=Counter(empty_image=2))
    progress.open["b"] = an_open_lease("b", 9, rejected=Counter(decode_error=4))
    pace = Pace()
    pace.add(progress)
    said = line(progress, pace)
    assert said.startswith("shards 3/9, images 56 (0.0/s), tokens ")
    assert "rejects decode_error 4, empty_image 3" in said
    told = facts(progress)
    assert told["rejected"] == {"empty_image": 1}
    assert told["open_rejected"] == {"empty_image": 2, "decode_error": 4}
    assert told["leases"] == 2


@pytest.mark.parametrize(
    ("usual_s", "age_s", "named"),
    [(10, 59, False), (10, 95, True), (40, 95, False), (40, 125, True)],
)
def test_a_shard_that_takes_longer_than_its_kind_is_named(usual_s, age_s, named):
    progress = Progress(total=9, already_done=0, token_budget=16_384, done=2, lease_s=2 * usual_s)
    progress.open["waits"] = OpenLease(lease=Lease(url="s3://b/in/waits.tar"))
    progress.open["long"] = an_open_lease("long", age_s, images=30)
    pace = Pace()
    pace.add(progress)
    assert (f"open for long long.tar {age_s} s, 30 images" in line(progress, pace)) == named
    assert facts(progress)["open_longest"][0]["shard"] == "s3://b/in/long.tar"


def test_the_age_of_a_shard_counts_from_its_first_images():
    lease = OpenLease(lease=Lease(url="s3://b/in/a.tar"))
    lease.hear(LeaseState(attempt="a"))
    assert lease.age_s == 0
    lease.hear(LeaseState(attempt="a", encoding=1))
    assert lease.age_s > 0


def test_the_summary_counts_what_is_published():
    progress = Progress(total=1, already_done=0, token_budget=16, done=1, read=5, embedded=4)
    progress.rejected.update(no_image=1)
    progress.open["a"] = an_open_lease("a", 1, rejected=Counter(no_image=7))
    assert "5 images read = 4 embedded + 1 rejected (no_image 1)" in summary(progress, "out")
