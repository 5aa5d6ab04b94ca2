"""Shards with one fault each, built in memory."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import zstandard
from PIL import Image

from pipeline.config import MetadataColumn

END_MARK = bytes(1024)
Members = list[tuple[str, bytes]]


@dataclass(frozen=True, kw_only=True)
class Case:
    fault: str
    images: int  # that are good and should be found
    data: bytes
    name: str = "shard.tar"
    inputs: dict = field(default_factory=dict)  # of embedmill's InputConfig
    fail_at: int | None = None  # the byte whose first read is throttled


def picture(seed: int, fmt: str = "JPEG", side: int = 32) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, fmt, quality=95)
    return out.getvalue()


def tar(members: Members, end: bytes = END_MARK) -> bytes:
    out = io.BytesIO()
    archive = tarfile.TarFile(fileobj=out, mode="w", format=tarfile.GNU_FORMAT)
    for name, data in members:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue() + end


def photos(number: int, suffix: str = "jpg", fmt: str = "JPEG", side: int = 32) -> Members:
    return [(f"{i:05}.{suffix}", picture(i, fmt, side)) for i in range(number)]


def replaced(members: Members, at: int, *new: tuple[str, bytes]) -> Members:
    return [*members[:at], *new, *members[at + 1 :]]


def with_texts(members: Members, suffix: str, text: bytes) -> Members:
    return [
        part for name, data in members for part in ((name, data), (f"{name[:5]}.{suffix}", text))
    ]


def whole_images(archive: bytes, length: int) -> int:
    """How many members are whole in the first `length` bytes."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        return sum(info.offset_data + info.size <= length for info in members)


def cases() -> Iterator[Case]:
    ten = photos(10)
    whole = tar(ten)
    yield Case(fault="none: `.jpg`", images=10, data=whole)
    yield Case(fault="none: `.png`", images=10, data=tar(photos(10, "png", "PNG")))
    for suffix, fmt in (("jpeg", "JPEG"), ("JPG", "JPEG"), ("webp", "WEBP")):
        yield Case(fault=f"none: `.{suffix}`", images=10, data=tar(photos(10, suffix, fmt)))
    mixed = photos(5) + [(f"p{name}", data) for name, data in photos(5, "png", "PNG")]
    yield Case(fault="none: JPEG and PNG in one shard", images=10, data=tar(mixed))
    page = tar(replaced(ten, 4, ("00004.jpg", b"<html>404</html>")))
    yield Case(fault="one image is an HTML page", images=9, data=page)
    empty = tar(replaced(ten, 4, ("00004.jpg", b"")))
    yield Case(fault="one image has no bytes", images=9, data=empty)
    texts = with_texts(ten, "json", b'{"a": 1}')
    column = MetadataColumn(name="a", field="a", type="int64")
    broken = tar(replaced(texts, 9, ("00004.json", b'{"a": ')))
    yield Case(fault="one JSON is broken", images=10, data=broken, inputs={"metadata": [column]})
    labels = tar(replaced(with_texts(ten, "cls", b"7"), 9, ("00004.cls", b"seven")))
    column = MetadataColumn(name="cls", member="cls", type="int64")
    yield Case(
        fault="one `cls` is no number", images=10, data=labels, inputs={"metadata": [column]}
    )
    dotted = [(f"img.v1.{name}", data) for name, data in photos(10)]
    yield Case(fault="dotted names, `img.v1.00000.jpg`", images=10, data=tar(dotted))
    yield Case(
        fault="the same, `key_split: last_dot`",
        images=10,
        data=tar(dotted),
        inputs={"key_split": "last_dot"},
    )
    forks = [part for name, data in ten for part in ((f"d/._{name}", b"fork"), (f"d/{name}", data))]
    yield Case(fault="made on a Mac, `d/._00000.jpg`", images=10, data=tar(forks))
    yield Case(fault="`__meta__.json`", images=10, data=tar([("__meta__.json", b"{}"), *ten]))
    double = tar([*ten[:5], ten[4], *ten[5:]])
    yield Case(fault="one member twice", images=10, data=double)
    split = [*ten, *((f"{name[:5]}.json", b"{}") for name, _ in ten)]
    yield Case(fault="members of a sample not adjacent", images=10, data=tar(split))
    yield from archive_cases(ten, whole)
    yield from throttled_cases()


def throttled_cases() -> Iterator[Case]:
    """Ray Data reads 32 MiB at a time; here the second read fails once, and is tried again."""
    second_read = 32 << 20
    for where, extra_blocks in (("inside an image", 0), ("at a header, as 1 in 5 here do", 1)):
        thumbnails = [(f"{i:05}.jpg", picture(i).ljust(4 * 512)) for i in range(14_000)]
        first = picture(0).ljust((4 + extra_blocks) * 512)
        yield Case(
            fault=f"storage throttles once; the read begins {where}",
            images=len(thumbnails),
            data=tar(replaced(thumbnails, 0, ("00000.jpg", first))),
            fail_at=second_read,
        )


def archive_cases(ten: Members, whole: bytes) -> Iterator[Case]:
    many = tar(photos(1200))
    cut = many[: len(many) * 9 // 10]
    good = whole_images(many, len(cut))
    yield Case(fault="1,200 images, cut at 90 %", images=good, data=cut)
    keep = {"on_truncated": "keep"}
    yield Case(fault="the same, `on_truncated: keep`", images=good, data=cut, inputs=keep)
    half = tar(ten[:5], end=b"")
    yield Case(fault="10 images, cut between two members", images=5, data=half)
    yield Case(fault="10 images, cut in a header", images=5, data=whole[: len(half) + 200])
    yield Case(fault="unfinished download: zeros to 4 MiB", images=5, data=half + bytes(4 << 20))
    changed = bytearray(whole)
    changed[len(half) + 10] ^= 1
    yield Case(fault="a changed byte in a header", images=10, data=bytes(changed))
    joined = tar(ten[:5]) + tar(ten[5:])
    yield Case(fault="two archives in a row (`cat`)", images=10, data=joined)
    yield Case(fault="file of 0 bytes", images=0, data=b"")
    yield Case(fault="empty archive", images=0, data=END_MARK)
    error_page = b"<html>503</html>".ljust(2000)
    yield Case(fault="an HTML page named `.tar`", images=0, data=error_page)
    squeezed = gzip.compress(whole)
    yield Case(fault="none: `.tgz`", images=10, data=squeezed, name="shard.tgz")
    yield Case(fault="gzip named `.tar`", images=10, data=squeezed)
    cut = squeezed[: len(squeezed) * 9 // 10]
    good = whole_images(whole, len(zlib.decompressobj(wbits=31).decompress(cut)))
    yield Case(fault="gzip, cut at 90 %", images=good, data=cut)
    zstd = zstandard.compress(whole)
    yield Case(fault="none: `.tar.zst`", images=10, data=zstd, name="shard.tar.zst")
