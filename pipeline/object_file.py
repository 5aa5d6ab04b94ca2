"""An object as a seekable file, for readers that need parts of it: Parquet columns, say."""

import io

from pipeline.storage import ObjectInfo, Storage


class ObjectFile(io.RawIOBase):
    """One version of one object; each read is one ranged request. Raises StorageError."""

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage = storage
        self._info: ObjectInfo = storage.info(url)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._info.size - self._at)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        data = self._storage.read_range(self._info, self._at, self._at + wanted)
        self._at += len(data)
        return data
