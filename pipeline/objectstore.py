"""The operations of storage on one bucket or server, through obstore."""

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.exceptions import AlreadyExistsError

from pipeline.config import StorageConfig
from pipeline.errors import StorageError
from pipeline.localfs import os_errors
from pipeline.retry import retrying
from pipeline.store_errors import is_conflict, store_errors
from pipeline.stores import Store, make_store
from pipeline.urls import Location, ObjectInfo, changed, object_url

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_LIST_CHUNK = 1000  # what a page of an S3 listing holds
_LARGE_MIB = 64
_SPOOL_CHUNK = 8 << 20
_NO_DATE = datetime(1970, 1, 2, tzinfo=UTC)  # obstore says 1970-01-01 where the server says nothing


class ObjectStore:
    """Each operation raises StorageError and tries once; only `list` tries again by itself."""

    def __init__(self, place: Location, config: StorageConfig) -> None:
        self._config = config
        self._store = make_store(place, config, config.request_timeout_s)

    def info(self, place: Location) -> ObjectInfo:
        if is_web(place):
            return self._web_info(place)
        with store_errors(place, "look up"):
            return _info(place, self._store.head(place.key))

    def list(self, place: Location) -> Iterator[ObjectInfo]:
        _refuse_web(place, "list")
        below = f"{place.key}/" if place.key else ""
        for meta in self._listed(place):
            if meta["path"].startswith(below):  # the marker that some tools make for a folder not
                url = object_url(place.scheme, place.bucket, meta["path"])
                yield ObjectInfo(url=url, size=meta["size"], etag=_version(meta))

    def read_range(self, place: Location, pinned: ObjectInfo, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the version that was pinned.

        The ETag goes along as If-Match and is compared again in the answer, because some servers
        ignore the header. A weak one never matches by the rules of HTTP, and is only compared.
        """
        options: GetOptions = {"range": (start, end)}
        if pinned.etag and pinned.etag.startswith('"'):
            options["if_match"] = pinned.etag
        with store_errors(place, "read"):
            result = self._store.get(place.key, options=options)
            content = memoryview(result.bytes())
        found = _info(place, result.meta)
        if found != pinned:
            raise changed(pinned, found)
        _check_length(place, len(content), end - start)
        return content

    def create(self, place: Location, source: bytes | Path) -> bool:
        """True when created, False when something is there; by one conditional request.

        Multipart uploads, obstore's way to send large files, have no create-only mode.
        """
        _refuse_web(place, "create")
        payload = source if isinstance(source, bytes) else _mapped(source)
        store = self._patient_store(place, len(payload))
        with store_errors(place, "create"):
            try:
                store.put(place.key, payload, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if is_conflict(error):
                    raise
                return False
        return True

    def put(self, place: Location, data: bytes) -> None:
        _refuse_web(place, "write")
        with store_errors(place, "write"):
            self._store.put(place.key, data, use_multipart=False)

    def delete(self, place: Location) -> None:
        _refuse_web(place, "delete")
        try:
            with store_errors(place, "delete"):
                self._store.delete(place.key)
        except StorageError as error:
            if error.kind != "not_found":
                raise

    def serves_ranges(self, place: Location, pinned: ObjectInfo) -> bool:
        """False for a web server that answers a range with the whole object."""
        try:
            self.read_range(place, pinned, 0, 1)
        except StorageError as error:
            if error.kind != "unsupported":
                raise
            return False
        return True

    def download(self, place: Location, pinned: ObjectInfo) -> memoryview:
        """The whole object in a nameless temporary file, mapped: disk is used, not memory."""
        store = self._patient_store(place, pinned.size)
        with os_errors(place, "spool"), tempfile.TemporaryFile(prefix="embedmill-") as file:
            with store_errors(place, "read"):
                result = store.get(place.key)
                for chunk in result.stream(_SPOOL_CHUNK):
                    file.write(chunk)
            file.flush()
            found = _info(place, result.meta)
            if found != pinned:
                raise changed(pinned, found)
            _check_length(place, file.tell(), pinned.size)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _listed(self, place: Location) -> Iterator["ObjectMeta"]:
        """Each object once; a page that fails is asked for again, starting after a known name.

        That name is never one that may also be a folder: SeaweedFS would then leave out what is
        below it. So what came since the last safe name comes twice, and is dropped.
        """
        safe: str | None = None
        last = ""
        since: set[str] = set()  # one name, more only where an object is called like a folder
        stream = self._store.list(place.key, chunk_size=_LIST_CHUNK)

        def next_chunk() -> Sequence["ObjectMeta"] | None:
            nonlocal stream
            try:
                with store_errors(place, "list"):
                    return next(stream, None)
            except StorageError:
                stream = self._store.list(place.key, offset=safe, chunk_size=_LIST_CHUNK)
                raise

        while chunk := retrying(next_chunk, self._config.retries):
            for meta in chunk:
                if meta["path"] in since:
                    continue
                if not meta["path"].startswith(f"{last}/"):
                    safe, since = last or None, set()
                last = meta["path"]
                since.add(last)
                yield meta

    def _web_info(self, place: Location) -> ObjectInfo:
        """From the first byte, because an URL that is signed for GET forbids HEAD."""
        try:
            with store_errors(place, "look up"):
                return _info(place, self._store.get(place.key, options={"range": (0, 1)}).meta)
        except StorageError as error:
            if error.kind not in ("unsupported", "changed"):  # no ranges; no first byte
                raise
        with store_errors(place, "look up"):
            return _info(place, self._store.head(place.key))

    def _patient_store(self, place: Location, size: int) -> Store:
        """The timeout of obstore covers the body; a large one gets a second more for each MiB."""
        mib = size >> 20
        if mib <= _LARGE_MIB:
            return self._store
        return make_store(place, self._config, self._config.request_timeout_s + mib)


def is_web(place: Location) -> bool:
    return place.scheme in ("http", "https")


def _refuse_web(place: Location, operation: str) -> None:
    if is_web(place):
        message = "web servers are for reading objects that are named one by one"
        raise StorageError(message, place.url, operation, "unsupported")


def _info(place: Location, meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(url=place.url, size=meta["size"], etag=_version(meta))


def _version(meta: "ObjectMeta") -> str | None:
    """The ETag; the time of the last change for web servers without ETags; None without both."""
    etag = meta["e_tag"]
    if etag:
        return etag if etag.endswith('"') else f'"{etag}"'  # Azure's listing leaves the quotes out
    changed_at = meta["last_modified"]
    return f"modified {changed_at.isoformat()}" if changed_at > _NO_DATE else None


def _check_length(place: Location, found: int, wanted: int) -> None:
    if found != wanted:
        message = f"the answer must have {wanted:,} bytes, it had {found:,}"
        raise StorageError(message, place.url, "read", "transient")


def _mapped(source: Path) -> bytes | mmap.mmap:
    """The file's bytes without reading it into memory: obstore sends them from the mapping."""
    with open(source, "rb") as file:
        if not source.stat().st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
