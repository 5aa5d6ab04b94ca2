"""The tar stream: names and data of every dialect, and errors where a byte is not as it must be."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.compression import ByteSource, TruncatedError
from pipeline.errors import ShardError
from pipeline.tar import MAX_HEADER_BYTES, MAX_PADDING_BYTES, TarReader
from tests.pipeline.tar_files import (
    END_MARK,
    FORMATS,
    header,
    padded,
    pax_header,
    special,
    tar_bytes,
)


def read_members(data: bytes):
    """(name, kind, data) of each member."""
    tar = TarReader(ByteSource(io.BytesIO(data), "shard"))
    return [(member.name, member.kind, tar.read_data()) for member in tar]


NAMES = [
    "a.jpg",
    "folder/b.jpg",
    "f" * 99,
    "f" * 100,
    "d" * 90 + "/" + "f" * 90 + ".jpg",
    "äöü/日本.jpg",
    "a b/with 'quotes' and \\ and\nnewline.jpg",
    "/absolute/../a.jpg",
    "./dot.jpg",
]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_names_survive_every_format(name, fmt):
    data = tar_bytes([("first.jpg", b"1"), (name, b"x" * 700), ("z", b"")], fmt=FORMATS[fmt])
    assert read_members(data) == [
        ("first.jpg", "file", b"1"),
        (name, "file", b"x" * 700),
        ("z", "file", b""),
    ]


@pytest.mark.parametrize("fmt", ["gnu", "pax"])
def test_names_beyond_a_header_are_read_from_extended_headers(fmt):
    name = "d" * 300 + "/" + "e" * 1000 + ".jpg"
    assert read_members(tar_bytes([(name, b"x")], fmt=FORMATS[fmt])) == [(name, "file", b"x")]


@pytest.mark.parametrize("fmt", FORMATS)
def test_name_bytes_that_are_not_utf8_stay_distinct(fmt):
    names = [b"caf\xe9.jpg".decode("utf-8", "surrogateescape"), "café.jpg"]
    data = tar_bytes([(name, b"x") for name in names], fmt=FORMATS[fmt])
    assert [name for name, _, _ in read_members(data)] == names


def test_every_kind_of_member_is_named():
    members = [
        special("dir", tarfile.DIRTYPE),
        special("hard.jpg", tarfile.LNKTYPE, linkname="a.jpg"),
        special("soft.jpg", tarfile.SYMTYPE, linkname="l" * 200),
        special("tty", tarfile.CHRTYPE),
        special("disk", tarfile.BLKTYPE),
        special("pipe", tarfile.FIFOTYPE),
        special("volume", b"V"),
        special("contiguous.jpg", tarfile.CONTTYPE),
        ("a.jpg", b"x"),
    ]
    kinds = [kind for _, kind, _ in read_members(tar_bytes(members))]
    expected = "directory link link device device device other file file"
    assert kinds == expected.split()


def test_size_of_a_link_is_not_data():
    link = header(b"a.jpg", b"0000001000", kind=b"2")
    data = link + header(b"b.jpg", b"1") + padded(b"x") + END_MARK
    assert [(n, k) for n, k, _ in read_members(data)] == [("a.jpg", "link"), ("b.jpg", "file")]


def test_unknown_kinds_have_data_that_is_passed_over():
    data = header(b"x", b"1000", kind=b"Q") + bytes(512) + header(b"b", b"1") + padded(b"x")
    assert [n for n, _, _ in read_members(data + END_MARK)] == ["x", "b"]


def test_v7_folder_is_told_by_its_slash():
    data = header(b"d/", b"0", kind=b"\0", magic=b"") + END_MARK
    assert read_members(data) == [("d/", "directory", b"")]


def test_prefix_counts_only_in_posix_headers():
    posix = header(b"a.jpg", b"0", prefix=b"folder") + END_MARK
    gnu = header(b"a.jpg", b"0", magic=b"ustar  \0", prefix=b"15000000000") + END_MARK
    assert [n for n, _, _ in read_members(posix)] == ["folder/a.jpg"]
    assert [n for n, _, _ in read_members(gnu)] == ["a.jpg"]  # there it is a time


def test_binary_size_is_read():
    data = header(b"a", b"\x80" + (5).to_bytes(11, "big")) + padded(b"12345") + END_MARK
    assert read_members(data) == [("a", "file", b"12345")]


def test_size_with_leading_spaces_is_read():
    data = header(b"a", b"          5 ") + padded(b"12345") + END_MARK
    assert read_members(data) == [("a", "file", b"12345")]


@pytest.mark.parametrize("size", [b"\xff" * 12, b"-1", b"12x", b"0x10", b"1_0", b"9"])
def test_size_that_is_no_octal_number_is_an_error(size):
    with pytest.raises(ShardError, match="must be an octal number"):
        read_members(header(b"a", size) + END_MARK)


def test_checksum_over_signed_bytes_is_accepted():
    block = bytearray(header("ä.jpg".encode(), b"0"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in block)
    assert [n for n, _, _ in read_members(bytes(block) + END_MARK)] == ["ä.jpg"]


def test_pax_size_and_path_stand_above_the_header():
    data = pax_header(size="5", path="other") + header(b"a", b"777") + padded(b"12345") + END_MARK
    assert read_members(data) == [("other", "file", b"12345")]


def test_global_records_hold_for_all_members_until_replaced():
    data = pax_header(b"g", path="every") + header(b"a", b"0") + header(b"b", b"0")
    data += pax_header(path="own") + header(b"c", b"0") + END_MARK
    assert [n for n, _, _ in read_members(data)] == ["every", "every", "own"]


def raw_pax(records: bytes) -> bytes:
    return header(b"pax", b"%o" % len(records), kind=b"x") + padded(records)


def test_first_of_several_extended_headers_wins_as_in_tarfile():
    long = header(b"././@LongLink", b"4", kind=b"L") + padded(b"gnu\0")
    pax = pax_header(path="pax")
    for first, second, name in ((long, pax, "gnu"), (pax, long, "pax")):
        data = first + second + header(b"a", b"0") + END_MARK
        assert [n for n, _, _ in read_members(data)] == [name]
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            assert tar.getnames() == [name]


@pytest.mark.parametrize(
    "records", [b"0 path=a\n", b"99 path=a\n", b"path=a\n", b"8 path a\n", b"10 path=ab", b"\xff"]
)
def test_pax_record_of_another_length_is_an_error(records):
    with pytest.raises(ShardError, match="must fit its length"):
        read_members(raw_pax(records) + header(b"a", b"0") + END_MARK)


def test_pax_size_that_is_no_number_is_an_error():
    with pytest.raises(ShardError, match="must be a number"):
        read_members(pax_header(size="-5") + header(b"a", b"0") + END_MARK)


def test_extended_header_is_never_read_without_bound():
    data = header(b"pax", b"%o" % (MAX_HEADER_BYTES + 1), kind=b"x")
    with pytest.raises(ShardError, match="8,388,608 bytes at most"):
        read_members(data)


def test_sparse_files_of_both_dialects_are_told_and_passed_over():
    old = bytearray(header(b"old.jpg", b"5", kind=b"S", magic=b"ustar  \0"))
    old[482] = 1  # one more block of the map follows
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    data = bytes(old) + bytes(512) + padded(b"12345")
    data += pax_header(GNU__sparse__major="1") + header(b"new.jpg", b"5") + padded(b"12345")
    data += header(b"plain", b"0") + END_MARK
    assert [(n, k) for n, k, _ in read_members(data)] == [
        ("old.jpg", "sparse"),
        ("new.jpg", "sparse"),
        ("plain", "file"),
    ]


def test_archives_in_a_row_are_one():
    first, second = tar_bytes([("a", b"1")]), tar_bytes([("b", b"2")])
    for gap in (b"", bytes(512), bytes(10240)):
        tar = TarReader(ByteSource(io.BytesIO(first + gap + second), "shard"))
        assert [member.name for member in tar] == ["a", "b"]
        assert tar.joined == 1


def test_empty_archive_has_no_members():
    assert read_members(END_MARK) == []
    assert read_members(bytes(10240)) == []


def test_empty_file_is_truncated():
    with pytest.raises(TruncatedError, match="is empty"):
        read_members(b"")


@pytest.mark.parametrize("mark", [b"", bytes(512)])
def test_archive_without_both_zero_blocks_is_truncated(mark):
    with pytest.raises(TruncatedError, match="no end-of-archive mark"):
        read_members(tar_bytes([("a", b"1")], end=mark))


@pytest.mark.parametrize("tail", [b"x", b"\n", b"upload: 100%" * 100])
def test_bytes_behind_the_end_mark_that_are_no_archive_are_an_error(tail):
    with pytest.raises(ShardError):
        read_members(tar_bytes([("a", b"1")]) + tail)


def test_zeros_of_any_odd_length_may_follow_the_end_mark():
    assert len(read_members(tar_bytes([("a", b"1")]) + bytes(777))) == 1


def test_zeros_without_end_are_an_unfinished_download():
    with pytest.raises(TruncatedError, match="allocated before an unfinished download"):
        read_members(tar_bytes([("a", b"1")]) + bytes(MAX_PADDING_BYTES))


def test_extended_header_without_a_member_is_an_error():
    with pytest.raises(ShardError, match="followed by no member"):
        read_members(pax_header(path="own") + END_MARK)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PK\x03\x04", "a zip archive"),
        (b"<?xml", "an error page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"PAR1", "a Parquet file"),
    ],
)
@pytest.mark.parametrize("length", [130, 5000])
def test_other_formats_are_named_and_are_no_truncated_tar(start, kind, length):
    with pytest.raises(ShardError, match=kind) as caught:
        read_members(start.ljust(length, b"."))
    assert not isinstance(caught.value, TruncatedError)


def test_member_may_be_named_like_another_format():
    assert read_members(tar_bytes([("<html>.jpg", b"x")]))[0][0] == "<html>.jpg"


def test_every_changed_byte_of_a_header_is_an_error_or_changes_nothing():
    data = tar_bytes([("a.jpg", b"1"), ("b.jpg", b"2")])
    good = read_members(data)
    harmless = []
    for at in range(1024, 1536):
        for bit in (1, 0x80):
            changed = bytearray(data)
            changed[at] ^= bit
            try:
                assert read_members(bytes(changed)) == good
                harmless.append(at - 1024)
            except ShardError:
                pass
    assert set(harmless) <= {154, 155}  # behind the checksum's digits: terminator and space


def test_error_names_shard_and_place():
    data = bytearray(tar_bytes([("a.jpg", b"1" * 600), ("b.jpg", b"2")]))
    data[1536] ^= 1
    with pytest.raises(ShardError, match=r"^shard: not a whole tar archive.*before byte 2,048"):
        read_members(bytes(data))


safe_text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=150
).filter(lambda text: not text.endswith("/") and len(text.encode()) <= 250)
members = st.lists(st.tuples(safe_text, st.binary(max_size=1500)), max_size=8)


@given(members=members, fmt=st.sampled_from(["gnu", "pax"]))
def test_members_equal_those_of_tarfile(members, fmt):
    data = tar_bytes(members, fmt=FORMATS[fmt])
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as tar:
        expected = [(info.name, "file", tar.extractfile(info).read()) for info in tar]
    assert read_members(data) == expected
