"""Archives that are almost right, against the promises of the shard reader.

    python -m tests.fuzz.fuzz_tar --minutes 10

Fourteen minutes on 2026-12-02: 174,000 archives and no fault. What it found before in the reader are
tests; what it found in tarfile's reading of odd headers is left out of the comparison below.
"""

import argparse
import io
import tarfile
import time
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.compression import ByteSource
from pipeline.config import MetadataColumn
from pipeline.errors import ShardError
from pipeline.tar import TarReader
from pipeline.tar_header import BLOCK
from tests.pipeline.tar_files import (
    COMPRESSIONS,
    END_MARK,
    FORMATS,
    header,
    open_shard,
    padded,
    tar_bytes,
)

COLUMNS = [
    MetadataColumn(name="caption", member="txt"),
    MetadataColumn(name="n", member="json", field="a.n", type="int64"),
    MetadataColumn(name="all", member="json", type="json", required=True),
]
MAX_IMAGE_BYTES = 3000

names = st.one_of(
    st.text("ab._/-é\n\\", max_size=12),
    st.builds("{}.{}".format, st.sampled_from("abc"), st.sampled_from(["jpg", "txt", "json"])),
    st.sampled_from(
        ["__meta__.json", "._a.jpg", "d/a.jpg/", "a.JPG", "a.b.png", "x" * 200 + ".jpg"]
    ),
)
contents = st.one_of(
    st.binary(max_size=1200),
    st.sampled_from([b"", b'{"a": {"n": 3}}', b"{", b'{"a":{"n":1e999}}', b"x" * 4000]),
)


@st.composite
def raw_members(draw):
    """A header by hand, whose size may lie, and some data behind it."""
    data = draw(contents)
    size = draw(
        st.one_of(
            st.just(b"%o" % len(data)),
            st.just(b"\x80" + len(data).to_bytes(11, "big")),
            st.binary(max_size=12),
            st.integers(0, 1 << 40).map(lambda number: b"%o" % number),
        )
    )
    kind = draw(st.one_of(st.sampled_from("0\x0012567xgLKSXVQ"), st.just("0")))
    magic = draw(st.sampled_from([b"ustar\x0000", b"ustar  \0", b""]))
    name = draw(names).encode("utf-8", "surrogateescape")[:100]
    # tarfile takes the times in a GNU header for a prefix, so only POSIX ones get one here.
    prefix = draw(st.binary(max_size=20)) if magic == b"ustar\x0000" else b""
    block = header(name, size[:12], kind=kind.encode(), magic=magic, prefix=prefix)
    return block + padded(data)


@st.composite
def pax_members(draw):
    """A PAX header with records that may not fit, and a member."""
    record = st.builds(
        lambda key, value, lie: b"%d %s=%s\n" % (len(key) + len(value) + 5 + lie, key, value),
        st.sampled_from([b"path", b"size", b"GNU.sparse.major", b"comment", b"\xff"]),
        st.one_of(st.binary(min_size=1, max_size=70), st.integers(0, 3000).map(b"%d".__mod__)),
        st.sampled_from([0, 0, 0, -1, 1, 100]),
    )
    data = b"".join(draw(st.lists(record, max_size=3)))
    kind = draw(st.sampled_from([b"x", b"g"]))
    return header(b"pax", b"%o" % len(data), kind=kind) + padded(data) + draw(raw_members())


honest = st.builds(
    lambda members, fmt: tar_bytes(members, fmt=FORMATS[fmt], end=b""),
    st.lists(st.tuples(names.filter(str.strip), contents), max_size=4),
    st.sampled_from(["gnu", "pax"]),
)
pieces = st.one_of(
    honest,
    raw_members(),
    pax_members(),
    st.sampled_from([END_MARK, bytes(512), bytes(100), END_MARK + bytes(9000)]),
    st.binary(max_size=600),
)


@st.composite
def archives(draw):
    """Some pieces in a row, perhaps compressed, then perhaps changed and cut."""
    data = b"".join(draw(st.lists(pieces, max_size=5)))
    data += draw(st.sampled_from([END_MARK, END_MARK, b""]))
    data = COMPRESSIONS[draw(st.sampled_from(sorted(COMPRESSIONS)))](data)
    changed = bytearray(data)
    for at, flip in draw(
        st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=2)
    ):
        if changed:
            changed[at % len(changed)] ^= flip
    return bytes(changed[: draw(st.one_of(st.none(), st.integers(0, len(changed))))])


def read(data: bytes, on_truncated: str):
    """Items up to the end or the error, the error or None, and the reader."""
    samples = open_shard(
        data, metadata=COLUMNS, on_truncated=on_truncated, max_image_bytes=MAX_IMAGE_BYTES
    )
    items = []
    try:
        for item in samples:
            items.append(item)
    except ShardError as error:
        return items, error, samples
    return items, None, samples


def check_items(items) -> None:
    assert [item.index for item in items] == list(range(len(items)))
    for item in items:
        for text in (item.id.key, item.member, getattr(item, "detail", "")):
            text.encode("utf-8")
            assert "\n" not in text
        if hasattr(item, "image"):
            assert 0 < len(item.image) <= MAX_IMAGE_BYTES
            assert set(item.metadata) == {"caption", "n", "all"}
            assert item.metadata["all"] is not None
    rows = Counter(item.id.key for item in items if hasattr(item, "image"))
    assert not rows or max(rows.values()) == 1


def plain_files(data: bytes) -> list[tuple[str, bytes]]:
    """Name and data of each file; without a slash at the end, which tarfile takes off a PAX name."""
    tar = TarReader(ByteSource(io.BytesIO(data), "shard"))
    return [(member.name.rstrip("/"), tar.read_data()) for member in tar if member.kind == "file"]


def tarfile_files(data: bytes) -> list[tuple[str, bytes]] | None:
    """What tarfile reads of a whole archive; None where it knows less or reads by other rules."""
    plain = ByteSource(io.BytesIO(data), "shard").take(1 << 40)
    if b"GNU.sparse" in plain or any(
        _is_overlong(plain[at:]) for at in range(0, len(plain), BLOCK)
    ):
        return None
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r|", ignore_zeros=True) as tar:
            for info in tar:
                # Of a member whose long name is empty we take the short one, tarfile none.
                if info.issparse() or not info.name:
                    return None
                if info.isreg():
                    found.append((info.name.rstrip("/"), tar.extractfile(info).read()))
            # A size for all members: tarfile gives out so much of each, yet steps over what its
            # own header says.
            if "size" in tar.pax_headers:
                return None
    except (tarfile.TarError, EOFError, OSError, ValueError):
        return None
    return found


def _is_overlong(rest: bytes) -> bool:
    """True for a GNU long name with more in its block than its size says: tarfile takes all."""
    size = rest[124:136].strip(b" \0")
    text = rest[BLOCK : 2 * BLOCK].partition(b"\0")[0]
    return rest[156:157] == b"L" and not (
        not size.strip(b"01234567") and int(size or b"0", 8) >= len(text)
    )


def check(data: bytes) -> str:
    """What became of the archive; AssertionError where a promise is broken."""
    items, error, samples = read(data, "fail")
    check_items(items)
    kept, kept_error, kept_samples = read(data, "keep")
    assert kept == items
    if error is None:
        assert samples.complete
        assert kept_samples.complete
        assert kept_error is None
        theirs = tarfile_files(data)
        if theirs is not None:
            assert plain_files(data) == theirs
        return "whole" if theirs is None else "whole, as tarfile reads it"
    if kept_error is None:
        assert not kept_samples.complete
        return "cut"
    assert str(kept_error) == str(error)
    return "corrupt"


def make_property(examples: int, outcomes: Counter):
    """The property over `examples` archives; outcomes are counted."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=archives())
    def promises_hold(data):
        outcomes[check(data)] += 1

    return promises_hold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    args = parser.parse_args()
    outcomes: Counter = Counter()
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        make_property(2000, outcomes)()
        print(dict(outcomes), flush=True)


if __name__ == "__main__":
    main()
