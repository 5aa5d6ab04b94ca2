"""Folders on local disk for what a shard has produced so far; a killed process leaves its own."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "embedmill-spool-"
_MIN_AGE_S = 60.0  # between the making of a folder and its lock


@contextmanager
def spool_folder() -> Iterator[Path]:
    """A new folder below the system's temporary one, gone afterwards.

    It is locked while this process lives, which is how `dead_spools` tells those left by a kill.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: its leftovers stay
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def dead_spools() -> Iterator[Path]:
    """The spool folders on this machine whose process was killed."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        if _is_dead(folder):
            yield folder


def _is_dead(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone meanwhile, or another user's
        return False
    try:
        if time.time() - os.fstat(lock).st_mtime < _MIN_AGE_S:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process lives, or locks are not to be had here
        return False
    else:
        return True
    finally:
        os.close(lock)
