"""The bytes inside a gzip, zstd, bzip2 or xz stream, known by its first bytes and never by a name.

Every reader here proves its end: all compressed bytes are used, every frame ran to its own end and
its checksum held. Frames in a row (pigz, pbzip2, pzstd, `cat a.gz b.gz`) are one stream. Memory is
bounded however far a few bytes expand.
"""

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import NoReturn, Protocol

import zstandard

from pipeline.errors import ShardError

READ_BYTES = 1 << 18  # compressed bytes asked of the stream at a time
OUTPUT_BYTES = 1 << 20  # decompressed bytes made at a time
XZ_MEMORY_BYTES = 512 << 20  # xz -9 needs 65 MiB; the format allows 4 GiB


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class TruncatedError(ShardError):
    """The bytes of a shard end before the archive does."""


class Decompressor(Protocol):
    """What bz2 and lzma offer; the adapters below make zlib and zstandard look the same."""

    def decompress(self, data: bytes, max_length: int) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)  # 16 + 15: gzip header, CRC and length checked

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _Zstd:
    """Feeds small pieces, because zstandard's decompressobj has no output limit.

    A block of 4 bytes may grow to 128 KiB, so one piece becomes 8 MiB at most.
    """

    _PIECE = 256  # bytes; 870 MB/s of output on one core

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._input = b""
        self._at = 0

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._input, self._at = self._input[self._at :] + data, 0
        parts, size = [], 0
        while size < max_length and not self.needs_input and not self.eof:
            piece = self._input[self._at : self._at + self._PIECE]
            self._at += len(piece)
            parts.append(self._inner.decompress(piece))
            size += len(parts[-1])
        return b"".join(parts)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return self._at == len(self._input)

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + self._input[self._at :]


def _is_bzip2(head: bytes) -> bool:
    return head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")


def _is_zstd(head: bytes) -> bool:
    skippable = head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F
    return head[:4] == b"\x28\xb5\x2f\xfd" or skippable


_FORMATS: dict[str, tuple[Callable[[bytes], bool], Callable[[], Decompressor]]] = {
    "gzip": (lambda head: head[:3] == b"\x1f\x8b\x08", _Gzip),
    "bzip2": (_is_bzip2, bz2.BZ2Decompressor),
    "xz": (
        lambda head: head[:6] == b"\xfd7zXZ\0",
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES),
    ),
    "zstd": (_is_zstd, _Zstd),
}
_CORRUPT = (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)  # OSError is bzip2's
_HEAD_BYTES = 10  # the longest magic, bzip2's


class ByteSource:
    """Reads of exact length from a stream that may be compressed and may return short reads.

    `position` counts the bytes given out, `consumed` those taken from the stream, `ended` says that
    it has no more. Raises ShardError where the compression is corrupt and TruncatedError where it
    ends in the middle.
    """

    def __init__(self, stream: Readable, shard: str) -> None:
        self.shard = shard
        self.position = 0
        self.consumed = 0
        self.ended = False
        self._stream = stream
        self._chunk = self._head()
        self._at = 0
        self.compression = next(
            (name for name, (matches, _) in _FORMATS.items() if matches(self._chunk)), "none"
        )
        self._more = self._next_plain
        if self.compression != "none":
            self._compressed, self._chunk = self._chunk, b""
            self._new_decompressor = _FORMATS[self.compression][1]
            self._decompressor = self._new_decompressor()
            self._more = self._next_decompressed

    def take(self, size: int) -> bytes:
        """The next `size` bytes, fewer only where the stream ends."""
        end = self._at + size
        if end <= len(self._chunk):
            data = self._chunk[self._at : end]
            self._at = end
        else:
            data = b"".join(self._parts(size))
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        """The number of bytes passed over: `size`, fewer only where the stream ends."""
        left = size
        while left:
            step = min(left, len(self._chunk) - self._at)
            self._at += step
            left -= step
            if left and not self._refill():
                break
        self.position += size - left
        return size - left

    def _parts(self, size: int) -> list[bytes]:
        parts = []
        while size:
            part = self._chunk[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
            if size and not self._refill():
                break
        return parts

    def _refill(self) -> bool:
        self._chunk, self._at = self._more(), 0
        return bool(self._chunk)

    def _head(self) -> bytes:
        head = self._next_plain()
        while head and len(head) < _HEAD_BYTES and (more := self._next_plain()):
            head += more
        return head

    def _next_plain(self) -> bytes:
        data = self._stream.read(READ_BYTES)
        self.consumed += len(data)
        self.ended = not data
        return data

    def _next_decompressed(self) -> bytes:
        """The next decompressed bytes, at least one; empty at the proven end of all frames."""
        while True:
            if self._decompressor.eof and not self._next_frame():
                return b""
            at_end = False
            if self._decompressor.needs_input and not self._compressed:
                self._compressed = self._next_plain()
                at_end = not self._compressed
            data = self._decompress()
            if data:
                return data
            if at_end and not self._decompressor.eof:
                self._fail_cut()

    def _decompress(self) -> bytes:
        data, self._compressed = self._compressed, b""
        try:
            return self._decompressor.decompress(data, OUTPUT_BYTES)
        except _CORRUPT as error:
            raise ShardError(
                f"the {self.compression} stream is corrupt near compressed byte "
                f"{self.consumed:,}: {error}",
                self.shard,
            ) from error

    def _next_frame(self) -> bool:
        """Whether another frame follows the one that just ended; zeros between are padding."""
        rest = self._decompressor.unused_data.lstrip(b"\0")
        while len(rest) < _HEAD_BYTES and (more := self._next_plain()):
            rest = (rest + more).lstrip(b"\0")
        if not rest:
            return False
        if len(rest) < _HEAD_BYTES:
            self._fail_cut()
        if not _FORMATS[self.compression][0](rest):
            raise ShardError(
                f"{self.compression} data is followed by bytes that are none "
                f"({rest[:8].hex(' ')}...), before compressed byte {self.consumed:,}",
                self.shard,
            )
        self._compressed = rest
        self._decompressor = self._new_decompressor()
        return True

    def _fail_cut(self) -> NoReturn:
        raise TruncatedError(
            f"the {self.compression} stream ends in the middle, after {self.consumed:,} bytes",
            self.shard,
        )
