"""Compressed streams: same bytes, proven end, bounded memory."""

import contextlib
import gzip
import io
import lzma
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.compression import OUTPUT_BYTES, ByteSource, TruncatedError
from pipeline.errors import ShardError
from tests.pipeline.tar_files import COMPRESSIONS, ShortReads

packed = pytest.mark.parametrize("name", [name for name in COMPRESSIONS if name != "none"])


def unpack(data: bytes, *, most: int = 1 << 30) -> bytes:
    source = ByteSource(ShortReads(data, most), "shard")
    parts = []
    while part := source.take(1000):
        parts.append(part)
    assert source.consumed == len(data)
    assert source.position == sum(map(len, parts))
    return b"".join(parts)


@packed
@pytest.mark.parametrize("most", [1, 7, 1 << 30])
def test_bytes_come_back(name, most):
    content = bytes(range(256)) * 40
    source = ByteSource(io.BytesIO(COMPRESSIONS[name](content)), "shard")
    assert source.compression == name
    assert unpack(COMPRESSIONS[name](content), most=most) == content


@packed
def test_frames_in_a_row_are_one_stream(name):
    compress = COMPRESSIONS[name]
    assert unpack(compress(b"a" * 9) + compress(b"") + compress(b"b" * 9)) == b"a" * 9 + b"b" * 9


@packed
def test_zeros_behind_the_last_frame_are_padding(name):
    assert unpack(COMPRESSIONS[name](b"abc") + bytes(400)) == b"abc"


@packed
def test_other_bytes_behind_the_last_frame_are_an_error(name):
    with pytest.raises(ShardError, match="followed by bytes that are none"):
        unpack(COMPRESSIONS[name](b"abc") + b"not a frame")


@packed
def test_every_cut_of_two_frames_is_told(name):
    frame = COMPRESSIONS[name](b"content " * 30)
    data = frame + frame
    for end in range(1, len(data)):
        if end == len(frame) or end < 10:
            continue  # a whole stream; or no magic yet, which the tar reader takes for a short tar
        with pytest.raises(TruncatedError):
            unpack(data[:end])


@packed
def test_every_changed_byte_is_an_error_or_harmless(name):
    """Checksums hold over the content; what they do not cover is times and names in headers."""
    content = bytes(range(100)) * 3
    data = COMPRESSIONS[name](content)
    for at in range(10, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with contextlib.suppress(ShardError):
            assert unpack(bytes(changed)) == content


def test_zstd_skippable_frames_are_skipped():
    skippable = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    frame = zstandard.compress(b"abc")
    assert unpack(skippable + frame + skippable + frame) == b"abcabc"


def test_gzip_with_name_and_comment_is_read():
    out = io.BytesIO()
    with gzip.GzipFile("name.tar", "wb", fileobj=out) as stream:
        stream.write(b"abc")
    assert unpack(out.getvalue()) == b"abc"


def test_plain_bytes_pass_unchanged():
    assert unpack(b"plain bytes", most=3) == b"plain bytes"
    assert unpack(b"") == b""


@given(
    content=st.binary(max_size=5000),
    name=st.sampled_from(sorted(COMPRESSIONS)),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 900)), max_size=30),
    most=st.integers(1, 2000),
)
def test_takes_and_skips_follow_the_content(content, name, steps, most):
    if name == "none":
        content = b"plain" + content
    source = ByteSource(ShortReads(COMPRESSIONS[name](content), most), "shard")
    at = 0
    for take, size in steps:
        expected = content[at : at + size]
        if take:
            assert source.take(size) == expected
        else:
            assert source.skip(size) == len(expected)
        at += len(expected)
        assert source.position == at


def bomb(name: str) -> bytes:
    """A few kilobytes or megabytes that become 96 MiB of zeros."""
    zeros, times = bytes(16 << 20), 6
    if name == "gzip":
        inner = zlib.compressobj(9, wbits=31)
    elif name == "zstd":
        inner = zstandard.ZstdCompressor(19).compressobj()
    else:
        inner = lzma.LZMACompressor()
    return b"".join([inner.compress(zeros) for _ in range(times)]) + inner.flush()


@pytest.mark.parametrize("name", ["gzip", "zstd", "xz"])
def test_bombs_do_not_fill_the_memory(name):
    data = bomb(name)
    tracemalloc.start()
    try:
        source = ByteSource(io.BytesIO(data), "shard")
        assert source.skip(1 << 40) == 96 << 20
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * OUTPUT_BYTES
