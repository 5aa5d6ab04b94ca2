"""Spool folders: gone in order, recognised after a kill, never taken from a process that lives."""

import os
import subprocess
import sys
import tempfile

import pytest

from pipeline.spool import dead_spools, spool_folder

HOLD = """
import sys
from pipeline.spool import spool_folder
with spool_folder() as folder:
    (folder / "rows.parquet").write_bytes(b"half")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def make_old(folder):
    os.utime(folder, (0, 0))


def test_a_spool_is_gone_afterwards_also_after_an_error(temporary):
    def work():
        with spool_folder() as folder:
            (folder / "rows.parquet").write_bytes(b"rows")
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        work()
    assert list(temporary.iterdir()) == []


def test_a_killed_process_leaves_a_dead_spool_and_a_live_one_none(temporary):
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    folders = [temporary / holder.stdout.readline().strip() for holder in holders]
    for folder in folders:
        make_old(folder)
    holders[0].kill()
    holders[0].communicate()
    assert list(dead_spools()) == [folders[0]]
    holders[1].communicate("")
    assert not folders[1].exists()


def test_a_folder_that_was_just_made_is_no_dead_spool(temporary):
    (temporary / "embedmill-spool-young").mkdir()
    assert list(dead_spools()) == []


def test_what_only_looks_like_a_spool_is_no_dead_spool(temporary):
    (temporary / "embedmill-demo").mkdir()
    (temporary / "embedmill-spool-file").write_bytes(b"")
    (temporary / "target").mkdir()
    (temporary / "embedmill-spool-link").symlink_to(temporary / "target")
    for path in temporary.iterdir():
        make_old(path)
    assert list(dead_spools()) == []
