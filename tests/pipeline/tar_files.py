"""Tar archives in memory, and a reader over them, for the tests of the shard reader."""

import bz2
import gzip
import io
import lzma
import tarfile

import zstandard

from pipeline.config import InputConfig
from pipeline.shards import ShardSamples

COMPRESSIONS = {
    "none": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
END_MARK = bytes(1024)


def tar_bytes(members, *, fmt=tarfile.GNU_FORMAT, end=END_MARK) -> bytes:
    """An archive of (name, bytes) pairs and TarInfo objects, without tar's padding to 10 KiB."""
    out = io.BytesIO()
    tar = tarfile.TarFile(fileobj=out, mode="w", format=fmt)
    for member in members:
        if isinstance(member, tarfile.TarInfo):
            tar.addfile(member, io.BytesIO(bytes(member.size)))
            continue
        name, data = member
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue() + end


def special(name: str, kind: bytes, **fields) -> tarfile.TarInfo:
    """A member that is no plain file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def header(name: bytes, size: bytes, *, kind=b"0", magic=b"ustar\x0000", prefix=b"") -> bytes:
    """A header block by hand, with the right checksum."""
    block = bytearray(512)
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size.ljust(12, b"\0")
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax_header(kind: bytes = b"x", **records: str) -> bytes:
    """An extended header block and its data, each record with its own length in front."""
    data = b""
    for key, value in records.items():
        rest = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(rest) + 1
        while len(f"{length}") + len(rest) != length:
            length += 1
        data += b"%d" % length + rest
    return header(b"pax", b"%o" % len(data), kind=kind) + padded(data)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def open_shard(data: bytes, *, size=-1, max_image_bytes=1 << 20, stream=None, **config):
    """A ShardSamples over the bytes; `config` goes into InputConfig."""
    return ShardSamples(
        stream or io.BytesIO(data),
        shard="file:///shard.tar",
        config=InputConfig(shards="shard.tar", **config),
        size=len(data) if size == -1 else size,
        max_image_bytes=max_image_bytes,
    )


def read_shard(data: bytes, **options):
    """The items of a shard, and the reader with its counts."""
    samples = open_shard(data, **options)
    return list(samples), samples


class ShortReads:
    """A stream whose reads return fewer bytes than asked for, as sockets do."""

    def __init__(self, data: bytes, most: int) -> None:
        self._inner = io.BytesIO(data)
        self._most = most

    def read(self, size: int) -> bytes:
        return self._inner.read(min(size, self._most))
