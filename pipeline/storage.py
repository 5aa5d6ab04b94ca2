"""Objects in folders, buckets and on servers behind one small interface.

Failures that may pass are tried again here and nowhere else: obstore's own retries are off, so a
request is made `retries + 1` times at most. All that comes out is StorageError or ConfigError.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pipeline.config import StorageConfig
from pipeline.localfs import LocalFiles, is_temporary
from pipeline.objectstore import ObjectStore, is_web
from pipeline.ranged import RangedReader
from pipeline.retry import retrying
from pipeline.urls import Location, ObjectInfo, canonical_url, locate

__all__ = ["ObjectInfo", "RangedReader", "Storage", "canonical_url", "is_temporary"]

_T = TypeVar("_T")


class Storage:
    """Paths and file://, s3://, gs://, az://, http(s):// (reading), memory:// (one per process).

    One object serves a process and all its threads. It travels by pickle as its configuration.
    """

    def __init__(self, config: StorageConfig) -> None:
        self._config = config
        self._files = LocalFiles()
        self._buckets: dict[tuple[str, str], ObjectStore] = {}

    def __reduce__(self) -> tuple[type["Storage"], tuple[StorageConfig]]:
        return Storage, (self._config,)

    def info(self, url: str) -> ObjectInfo:
        """Size and version of an object. Raises StorageError, at once for not_found and denied."""
        place = locate(url)
        backend = self._backend(place)
        return self._try(lambda: backend.info(place))

    def list(self, prefix_url: str) -> Iterator[ObjectInfo]:
        """The objects below a folder at any depth, as they are found; none where there is none.

        Object stores answer in the order of their names, folders of files in any order.
        """
        place = locate(prefix_url)
        return self._backend(place).list(place)

    def read(self, url: str) -> bytes:
        """The whole of a small object."""
        with self.open(url) as stream:
            return stream.read()

    def tail(self, url: str, size: int) -> bytes:
        """The last `size` bytes of an object, all of a shorter one; a Parquet footer, say."""
        place = locate(url)
        backend = self._backend(place)
        info = self._try(lambda: backend.info(place))
        if not info.size:
            return b""  # of which no store gives a range
        start = max(0, info.size - size)
        return bytes(self._try(lambda: backend.read_range(place, info, start, info.size)))

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Bytes [start, end) of the version that `info` told of, none of them beyond its end.

        Raises StorageError: `changed` where the object is no longer that version.
        """
        place = locate(info.url)
        backend = self._backend(place)
        return bytes(self._try(lambda: backend.read_range(place, info, start, end)))

    def open(self, url: str) -> RangedReader:
        """A stream over the version that is there now, read in ranges of storage.range_mib.

        A web server without ranges sends the object once, into a temporary file.
        """
        place = locate(url)
        backend = self._backend(place)
        info = self._try(lambda: backend.info(place))

        def fetch(start: int, end: int, stop: threading.Event) -> memoryview:
            return self._try(lambda: backend.read_range(place, info, start, end), stop)

        whole = self._downloaded(backend, place, info)
        return RangedReader(
            info,
            fetch if whole is None else lambda start, end, _: whole[start:end],
            range_bytes=self._config.range_mib << 20,
            read_ahead=self._config.read_ahead,
        )

    def create(self, url: str, source: bytes | Path) -> bool:
        """True when the object was created whole now, False when one is there already.

        It may be our own: where the answer to a successful try was lost, the next try finds it.
        """
        place = locate(url)
        backend = self._backend(place)
        return self._try(lambda: backend.create(place, source))

    def put(self, url: str, data: bytes) -> None:
        """None; writes the object whole, over one that is there."""
        place = locate(url)
        backend = self._backend(place)
        self._try(lambda: backend.put(place, data))

    def delete(self, url: str) -> None:
        """None; the object is gone, or was not there."""
        place = locate(url)
        backend = self._backend(place)
        self._try(lambda: backend.delete(place))

    def _downloaded(
        self, backend: LocalFiles | ObjectStore, place: Location, info: ObjectInfo
    ) -> memoryview | None:
        if not is_web(place) or not info.size or isinstance(backend, LocalFiles):
            return None
        if self._try(lambda: backend.serves_ranges(place, info)):
            return None
        return self._try(lambda: backend.download(place, info))

    def _try(self, call: Callable[[], _T], stop: threading.Event | None = None) -> _T:
        return retrying(call, self._config.retries, stop)

    def _backend(self, place: Location) -> LocalFiles | ObjectStore:
        if place.scheme == "file":
            return self._files
        if is_web(place):  # each URL may have a signature or a user of its own
            return ObjectStore(place, self._config)
        key = (place.scheme, place.bucket)
        if key not in self._buckets:
            self._buckets[key] = ObjectStore(place, self._config)
        return self._buckets[key]
