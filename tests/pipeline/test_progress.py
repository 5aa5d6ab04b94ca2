"""What a terminal shows: lines of the log stand above the live lines, never in them."""

import logging
import os
import pty
import re
import subprocess
import sys

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
