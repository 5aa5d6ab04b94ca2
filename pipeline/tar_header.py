"""One tar header block: who the member is, and how many bytes follow.

Fields as in POSIX.1-2001 (pax) and the GNU tar manual, "Basic Tar Format".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BLOCK = 512

Kind = Literal["file", "directory", "link", "device", "sparse", "other"]
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",  # contiguous
    b"1": "link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "device",  # a pipe
    b"S": "sparse",
}
_WITHOUT_DATA = ("link", "device", "directory")  # whatever their size field says
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a rar archive",
    b"PAR1": "a Parquet file",
    b"\x1f\x9d": "compress (.Z) data",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"\x5d\x00\x00": "lzma data",
    b"<": "HTML or XML, perhaps an error page",
    b"{": "JSON",
    b"version https://git-lfs": "a Git LFS pointer",
}


class HeaderError(ValueError):
    """A block or record is not what the format says."""


@dataclass(slots=True, kw_only=True)
class Member:
    name: str  # bytes that are not UTF-8 are kept as surrogates
    kind: Kind
    size: int  # bytes of data that follow


def check_block(block: bytes) -> None:
    """Returns where the block's sum is what it says; some old tars summed signed bytes."""
    stored = _octal(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]  # the field itself counts as spaces
    total = sum(rest)
    if stored != total and stored != total - 256 * sum(byte > 127 for byte in rest):
        raise HeaderError(
            f"a block that must be a header has a wrong checksum (it begins with {block[:16]!r}): "
            f"bytes were lost, added or changed"
        )


def parse_member(block: bytes, records: Mapping[str, bytes]) -> Member:
    """The member that a header announces; `records` of extended headers stand above its fields."""
    flag = block[156:157]
    kind = _KINDS.get(flag, "other")
    if flag == b"\0" and _text(block[:100]).endswith(b"/"):
        kind = "directory"  # V7 had no flag for it
    if any(key.startswith("GNU.sparse.") for key in records):
        kind = "sparse"
    name = records.get("path") or _name(block)
    size = _decimal(records["size"]) if records.get("size") else size_field(block)
    return Member(
        name=name.decode("utf-8", "surrogateescape"),
        kind=kind,
        size=0 if kind in _WITHOUT_DATA else size,
    )


def size_field(block: bytes) -> int:
    """Bytes of data: octal digits, or a big-endian number behind 0x80 from 8 GiB on."""
    field = block[124:136]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    size = _octal(field)
    if size is None:
        raise HeaderError(f"a header's size must be an octal number, found {field!r}")
    return size


def pax_records(data: bytes) -> dict[str, bytes]:
    r"""The records of a PAX header, "<length> <key>=<value>\n"; length counts the whole record."""
    records = {}
    at = 0
    while at < len(data):
        digits, _, _ = data[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[at : at + length]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if len(record) < length or not equals or not value.endswith(b"\n"):
            raise HeaderError(f"a PAX record must fit its length, found {data[at : at + 40]!r}")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1]
        at += length
    return records


def long_name(data: bytes) -> bytes:
    """The name in the data of a GNU long-name header."""
    return _text(data)


def looks_like(block: bytes) -> str | None:
    """What a first block that is no tar header may be."""
    found = (name for magic, name in _FOREIGN.items() if block.startswith(magic))
    return next(found, None)


def _octal(field: bytes) -> int | None:
    digits = _text(field).strip(b" ")
    if digits.strip(b"01234567"):
        return None
    return int(digits or b"0", 8)


def _decimal(field: bytes) -> int:
    if not field.isdigit() or len(field) > 20:
        raise HeaderError(f"a PAX header's size must be a number, found {field[:40]!r}")
    return int(field)


def _name(block: bytes) -> bytes:
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:  # GNU has another magic, and times there
        return _text(block[345:500]) + b"/" + name
    return name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
