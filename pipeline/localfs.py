"""Files: what storage does with paths. Own code, because obstore's local store does not fsync."""

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile

from pipeline.errors import StorageError, StorageKind
from pipeline.urls import Location, ObjectInfo, changed, quoted

# In the folder of its target, and hidden: readers of Parquet folders skip names with a dot first.
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.embedmill-tmp")
_KINDS: dict[int | None, StorageKind] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EISDIR: "not_found",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    # Network file systems answer these while their server restarts.
    errno.EIO: "transient",
    errno.ESTALE: "transient",
    errno.ETIMEDOUT: "transient",
    errno.EAGAIN: "transient",
}
_PLAIN: dict[int | None, str] = {
    errno.ENOTDIR: "there is a file where a folder must be",
    errno.EEXIST: "there is a file where a folder must be",
}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def is_temporary(name: str) -> bool:
    """True for the base name of a file that a killed process left half-written."""
    return _TEMPORARY.fullmatch(name) is not None


class LocalFiles:
    """The operations of storage on files. Each raises StorageError and tries once."""

    def info(self, place: Location) -> ObjectInfo:
        with os_errors(place, "look up"):
            found = os.stat(place.key)
        if not stat.S_ISREG(found.st_mode):
            raise StorageError("it is no file", place.url, "look up", "not_found")
        return _info(place.url, found)

    def list(self, place: Location) -> Iterator[ObjectInfo]:
        """The files below a folder, in no order. Links are followed, never back into a parent."""
        with os_errors(place, "list"):
            yield from _walk(place.key, frozenset())

    def read_range(self, place: Location, pinned: ObjectInfo, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the version that was pinned.

        Opened anew each time: a replaced file is noticed, and network file systems look again.
        """
        with os_errors(place, "read"), open(place.key, "rb", buffering=0) as file:
            content = bytearray(end - start)
            whole = _fill(content, file.fileno(), start)
            found = _info(place.url, os.fstat(file.fileno()))  # after the bytes: they are of then
            if found != pinned or not whole:
                raise changed(pinned, found)
            return memoryview(content)

    def create(self, place: Location, source: bytes | Path) -> bool:
        with os_errors(place, "create"), _written(place.key, source) as temporary:
            return _link(temporary, place.key)

    def put(self, place: Location, data: bytes) -> None:
        with os_errors(place, "write"), _written(place.key, data) as temporary:
            os.replace(temporary, place.key)

    def delete(self, place: Location) -> None:
        with os_errors(place, "delete"):
            Path(place.key).unlink(missing_ok=True)


@contextmanager
def os_errors(place: Location, operation: str) -> Iterator[None]:
    """Nothing; an OSError inside comes out as StorageError."""
    try:
        yield
    except OSError as error:
        message = _PLAIN.get(error.errno) or error.strerror or str(error)
        kind = _KINDS.get(error.errno, "other")
        raise StorageError(message, place.url, operation, kind) from error


def _info(url: str, found: os.stat_result) -> ObjectInfo:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(url=url, size=found.st_size, etag=etag)


def _walk(folder: str, parents: frozenset[tuple[int, int]]) -> Iterator[ObjectInfo]:
    try:
        itself = os.stat(folder)
        identity = (itself.st_dev, itself.st_ino)
        if identity in parents:
            return
        entries = os.scandir(folder)
    except FileNotFoundError:
        return  # gone meanwhile, or never there: like an empty prefix of an object store
    folder_url = f"file://{quoted(folder)}".rstrip("/")
    with entries:
        for entry in entries:
            try:
                if entry.is_dir():
                    yield from _walk(entry.path, parents | {identity})
                elif entry.is_file():
                    yield _info(f"{folder_url}/{quoted(entry.name)}", entry.stat())
            except FileNotFoundError:
                continue  # deleted since it was listed


def _fill(content: bytearray, file: int, offset: int) -> bool:
    """True when the file had as many bytes from `offset` as the buffer has room for."""
    view = memoryview(content)
    while view:
        count = os.preadv(file, [view], offset)
        if not count:
            return False
        view, offset = view[count:], offset + count
    return True


@contextmanager
def _written(target: str, source: bytes | Path) -> Iterator[str]:
    """A synced temporary file beside the target, gone afterwards; then the folder is synced."""
    folder = os.path.dirname(target)
    _make_folder(folder)
    temporary = os.path.join(folder, f".{uuid.uuid4().hex}.embedmill-tmp")
    try:
        if isinstance(source, bytes):
            Path(temporary).write_bytes(source)
        else:
            copyfile(source, temporary)
        _sync(temporary)
        yield temporary
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync(folder)


def _link(temporary: str, target: str) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # A network file system that lost the answer to a link it made says the same.
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links: two writers at one moment may both succeed.
        if os.path.exists(target):
            return False
        os.rename(temporary, target)
    return True


def _make_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        _make_folder(parent)
        os.makedirs(folder, exist_ok=True)
        _sync(parent)


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
