"""Shards to samples: grouping, what is rejected and skipped, exact accounting at every cut."""

import io
import itertools
import tarfile
import tracemalloc

import pytest

from pipeline.compression import TruncatedError
from pipeline.config import MetadataColumn
from pipeline.errors import ShardError
from pipeline.records import RawSample, Rejection
from tests.pipeline.tar_files import (
    COMPRESSIONS,
    END_MARK,
    FORMATS,
    ShortReads,
    open_shard,
    read_shard,
    special,
    tar_bytes,
)

CAPTION = MetadataColumn(name="caption", member="txt")


def brief(items) -> list[tuple]:
    """(key, bytes) of samples, (key, reason) of rejections, checked for index and shard."""
    assert [item.index for item in items] == list(range(len(items)))
    assert {item.id.shard for item in items} <= {"file:///shard.tar"}
    return [
        (item.id.key, item.image if isinstance(item, RawSample) else item.reason.value)
        for item in items
    ]


def read_brief(members, **options) -> list[tuple]:
    return brief(read_shard(tar_bytes(members), **options)[0])


# --- grouping ----------------------------------------------------------------------------------


def test_members_in_a_row_with_one_key_are_a_sample():
    members = [("d/a.JPG", b"1"), ("d/a.txt", b"one"), ("d/b.json", b"{}"), ("d/b.png", b"2")]
    items, samples = read_shard(tar_bytes(members), metadata=[CAPTION])
    assert brief(items) == [("d/a", b"1"), ("d/b", b"2")]
    assert [item.metadata for item in items] == [{"caption": "one"}, {"caption": None}]
    assert [item.member for item in items] == ["d/a.JPG", "d/b.png"]
    assert samples.complete
    assert samples.warnings == {"missing_metadata": 1}


def test_folders_belong_to_the_key():
    assert read_brief([("x/a.jpg", b"1"), ("y/a.jpg", b"2"), ("a.jpg", b"3")]) == [
        ("x/a", b"1"),
        ("y/a", b"2"),
        ("a", b"3"),
    ]


def test_empty_archive_has_no_samples():
    items, samples = read_shard(END_MARK)
    assert items == []
    assert samples.complete


def test_absolute_paths_and_dots_are_only_names():
    assert read_brief([("/etc/a.jpg", b"1"), ("../../b.jpg", b"2"), ("./c.jpg", b"3")]) == [
        ("/etc/a", b"1"),
        ("../../b", b"2"),
        ("./c", b"3"),
    ]


def test_names_that_are_not_utf8_become_distinct_printable_keys():
    names = [b"caf\xe9.jpg", b"caf\xe8.jpg", rb"caf\xe9.jpg"]
    members = [(name.decode("utf-8", "surrogateescape"), b"1") for name in names]
    keys = [key for key, _ in read_brief(members)]
    assert keys == ["caf\\xe9", "caf\\xe8", "caf\\x5cxe9"]


def test_junk_between_the_members_of_a_sample_does_not_part_it():
    members = [
        ("a.jpg", b"1"),
        special("d", tarfile.DIRTYPE),
        ("._a.jpg", b"fork"),
        ("a.txt", b"one"),
    ]
    items, samples = read_shard(tar_bytes(members), metadata=[CAPTION])
    assert [item.metadata for item in items] == [{"caption": "one"}]
    assert samples.skipped == {"directory": 1, "resource_fork": 1}


def test_what_is_no_sample_is_skipped_and_counted():
    members = [
        special("d", tarfile.DIRTYPE),
        special("l.jpg", tarfile.SYMTYPE, linkname="a.jpg"),
        special("h.jpg", tarfile.LNKTYPE, linkname="a.jpg"),
        special("pipe", tarfile.FIFOTYPE),
        special("s.jpg", tarfile.GNUTYPE_SPARSE),
        special("q.jpg", b"Q"),
        ("d/._a.jpg", b"fork"),
        ("__MACOSX/a.jpg", b"fork"),
        ("d/.DS_Store", b"mac"),
        ("__index__", b"x"),
        ("__meta__.json", b"{}"),
        ("d/__meta__.json", b"{}"),
        ("README", b"text"),
        ("a.jpg", b"1"),
    ]
    items, samples = read_shard(tar_bytes(members))
    assert brief(items) == [("a", b"1")]
    assert samples.skipped == {
        "directory": 1,
        "link": 2,
        "device": 1,
        "sparse": 1,
        "other": 1,
        "resource_fork": 2,
        "hidden": 1,
        "meta": 3,
        "no_extension": 1,
    }


def test_image_named_like_meta_is_a_sample():
    assert read_brief([("__a__.jpg", b"1"), ("__a__.json", b"{}")]) == [("__a__", b"1")]


# --- rejections --------------------------------------------------------------------------------


def test_sample_without_image_is_rejected():
    items, _ = read_shard(tar_bytes([("a.txt", b"1"), ("a.json", b"{}"), ("b.jpg", b"2")]))
    assert brief(items) == [("a", "no_image"), ("b", b"2")]
    assert "2 members" in items[0].detail


def test_empty_image_is_rejected():
    items, _ = read_shard(tar_bytes([("a.jpg", b""), ("b.jpg", b"2")]))
    assert brief(items) == [("a", "empty_image"), ("b", b"2")]
    assert items[0].member == "a.jpg"


def test_image_beyond_the_byte_limit_is_rejected_and_not_read():
    members = [("a.jpg", bytes(30 << 20)), ("b.jpg", b"2"), ("c.jpg", b"123")]
    data = tar_bytes(members)
    tracemalloc.start()
    try:
        items, _ = read_shard(data, max_image_bytes=3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert brief(items) == [("a", "too_many_bytes"), ("b", b"2"), ("c", b"123")]
    assert "31,457,280" in items[0].detail
    assert peak < 4 << 20


def test_images_merged_by_the_first_dot_are_one_rejection_that_says_how_to_part_them():
    members = [(f"d/img.v1.{i:04}.jpg", b"x") for i in range(5)]
    items, _ = read_shard(tar_bytes(members))
    assert brief(items) == [("d/img", "several_images")]
    assert "d/img.v1.0000.jpg" in items[0].detail
    assert "d/img.v1.0001.jpg" in items[0].detail
    assert "5 image" in items[0].detail
    assert "key_split: last_dot" in items[0].detail
    assert read_brief(members, key_split="last_dot") == [
        (f"d/img.v1.{i:04}", b"x") for i in range(5)
    ]


def test_photo_and_mask_need_the_extension_of_the_photo():
    members = [("a.jpg", b"1"), ("a.mask.png", b"2"), ("b.jpg", b"3"), ("b.mask.png", b"4")]
    assert read_brief(members) == [("a", "several_images"), ("b", "several_images")]
    assert read_brief(members, image_extensions=["jpg"]) == [("a", b"1"), ("b", b"3")]
    assert read_brief(members, image_extensions=["mask.png"]) == [("a", b"2"), ("b", b"4")]


def test_same_extension_in_two_cases_is_two_images():
    assert read_brief([("a.jpg", b"1"), ("a.JPG", b"2")]) == [("a", "several_images")]


def test_repeated_member_next_to_its_first_is_a_duplicate():
    members = [("a.jpg", b"1"), ("a.jpg", b"2"), ("a.jpg", b"3"), ("b.jpg", b"4")]
    expected = [("a", b"1"), ("a", "duplicate_key"), ("a", "duplicate_key"), ("b", b"4")]
    assert read_brief(members) == expected


def test_repeated_sample_is_a_duplicate_and_the_first_stays():
    members = [("a.jpg", b"1"), ("a.txt", b"one"), ("b.jpg", b"2"), ("a.jpg", b"3")]
    items, _ = read_shard(tar_bytes(members), metadata=[CAPTION])
    assert brief(items) == [("a", b"1"), ("b", b"2"), ("a", "duplicate_key")]
    assert items[0].metadata == {"caption": "one"}
    assert items[2].member == "a.jpg"


def test_sample_torn_apart_is_a_duplicate_that_says_to_sort():
    members = [("a.txt", b"one"), ("b.txt", b"two"), ("a.jpg", b"1"), ("b.jpg", b"2")]
    items, _ = read_shard(tar_bytes(members))
    reasons = [reason for _, reason in brief(items)]
    assert reasons == ["no_image", "no_image", "duplicate_key", "duplicate_key"]
    assert "--sort=name" in items[2].detail


def test_hash_collision_costs_a_rejection_and_no_image_is_lost(monkeypatch):
    class Constant:
        def __init__(self, data, digest_size): ...
        def digest(self):
            return bytes(8)

    monkeypatch.setattr("pipeline.shards.hashlib.blake2b", Constant)
    assert read_brief([("a.jpg", b"1"), ("b.jpg", b"2")]) == [("a", b"1"), ("b", "duplicate_key")]


def test_required_metadata_rejects_and_optional_warns():
    members = [("a.jpg", b"1"), ("a.json", b"{bad"), ("b.jpg", b"2"), ("b.json", b'{"n": 7}')]
    optional = MetadataColumn(name="n", field="n", type="int64")
    items, samples = read_shard(tar_bytes(members), metadata=[optional])
    assert [item.metadata for item in items] == [{"n": None}, {"n": 7}]
    assert samples.warnings == {"bad_metadata": 1}
    required = optional.model_copy(update={"required": True})
    items, samples = read_shard(tar_bytes(members), metadata=[required])
    assert brief(items) == [("a", "missing_metadata"), ("b", b"2")]
    assert "is not JSON" in items[0].detail
    assert samples.warnings == {}


def test_metadata_member_that_repeats_keeps_the_first():
    members = [("a.txt", b"one"), ("a.txt", b"two"), ("a.jpg", b"1")]
    items, samples = read_shard(tar_bytes(members), metadata=[CAPTION])
    assert items[0].metadata == {"caption": "one"}
    assert samples.warnings == {"duplicate_member": 1}


def test_huge_metadata_member_is_not_read():
    members = [("a.jpg", b"1"), ("a.txt", bytes(17 << 20))]
    items, samples = read_shard(tar_bytes(members), metadata=[CAPTION])
    assert items[0].metadata == {"caption": None}
    assert samples.warnings == {"bad_metadata": 1}


def test_details_are_one_printable_line():
    members = [("a\nb.1.jpg", b"1"), ("a\nb.2.jpg", b"2"), ("c\n.jpg", b"")]
    for item in read_shard(tar_bytes(members))[0]:
        assert isinstance(item, Rejection)
        assert "\n" not in item.detail + item.member + item.id.key


# --- accounting --------------------------------------------------------------------------------

LAYOUT = [
    ("a.jpg", b"image a" * 80),
    ("a.txt", b"one"),
    ("d" * 120 + "/b.jpg", b"image b"),
    ("c.jpg", b"image c" * 20),
    ("c.txt", b"three"),
]
cuts = pytest.mark.parametrize(
    ("fmt", "compression"), list(itertools.product(FORMATS, COMPRESSIONS))
)


def whole_archives(data: bytes, compression: str) -> range:
    """Lengths at which a cut leaves a whole archive: only zeros behind the mark are gone."""
    return range(len(data) - 512, len(data)) if compression == "none" else range(0)


@cuts
def test_no_cut_looks_complete(fmt, compression):
    """At every position, both where storage knows the full size and where it knows the cut one."""
    data = COMPRESSIONS[compression](tar_bytes(LAYOUT, fmt=FORMATS[fmt]) + bytes(512))
    assert len(read_shard(data)[0]) == 3
    undecidable = whole_archives(data, compression)
    for end in range(len(data)):
        with pytest.raises(ShardError):
            read_shard(data[:end], size=len(data))
        if end not in undecidable:
            with pytest.raises(ShardError):
                read_shard(data[:end])


@cuts
def test_keep_yields_what_was_whole_at_every_cut(fmt, compression):
    data = COMPRESSIONS[compression](tar_bytes(LAYOUT, fmt=FORMATS[fmt]) + bytes(512))
    whole = read_shard(data, metadata=[CAPTION])[0]
    undecidable = whole_archives(data, compression)
    kept = set()
    for end in range(len(data)):
        if end in undecidable:
            continue
        items, samples = read_shard(data[:end], metadata=[CAPTION], on_truncated="keep")
        assert items == whole[: len(items)]
        assert not samples.complete
        assert samples.warnings["truncated"] == 1
        kept.add(len(items))
    if compression == "none":  # others are one small block, decoded at its end
        assert kept == {0, 1, 2}


def test_sample_behind_which_the_cut_lies_is_dropped_and_counted():
    data = tar_bytes([("a.jpg", b"1"), ("b.jpg", b"2")], end=b"")
    items, samples = read_shard(data, on_truncated="keep")
    assert brief(items) == [("a", b"1")]
    assert samples.warnings == {"truncated": 1, "cut_sample": 1}
    with pytest.raises(TruncatedError, match="no end-of-archive mark"):
        read_shard(data)


def test_stream_that_broke_off_is_never_kept():
    data = tar_bytes([("a.jpg", b"1"), ("b.jpg", b"2")])
    with pytest.raises(ShardError, match=r"storage says the shard has 3,072 bytes, 1,500 were"):
        read_shard(data[:1500], size=len(data), on_truncated="keep")


def test_stream_longer_than_storage_says_is_an_error():
    data = tar_bytes([("a.jpg", b"1")])
    with pytest.raises(ShardError, match="storage says"):
        read_shard(data + bytes(512), size=len(data))


def test_corrupt_header_is_an_error_also_with_keep():
    data = bytearray(tar_bytes([("a.jpg", b"1"), ("b.jpg", b"2")]))
    data[1024] ^= 1
    samples = open_shard(bytes(data), on_truncated="keep")
    iterator = iter(samples)
    with pytest.raises(ShardError, match="wrong checksum"):
        list(iterator)


def test_unfinished_download_is_cut_where_its_zeros_begin():
    data = tar_bytes([("a.jpg", b"1"), ("b.jpg", b"2")], end=b"") + bytes(5 << 20)
    with pytest.raises(TruncatedError, match="allocated before"):
        read_shard(data)
    items, samples = read_shard(data, on_truncated="keep")
    assert brief(items) == [("a", b"1")]
    assert not samples.complete


def test_joined_archives_are_read_to_the_end_and_counted():
    parts = [tar_bytes([(f"{name}.jpg", b"1")]) + bytes(9000 // 512 * 512) for name in "abc"]
    items, samples = read_shard(b"".join(parts))
    assert [key for key, _ in brief(items)] == ["a", "b", "c"]
    assert samples.warnings == {"joined_archives": 2}


def test_key_that_continues_in_a_joined_archive_is_one_sample():
    data = tar_bytes([("a.jpg", b"1")]) + tar_bytes([("a.txt", b"one")])
    items, _ = read_shard(data, metadata=[CAPTION])
    assert [item.metadata for item in items] == [{"caption": "one"}]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("most", [1, 511, 4096])
def test_short_reads_change_nothing(compression, most):
    data = COMPRESSIONS[compression](tar_bytes(LAYOUT))
    items, _ = read_shard(data, stream=ShortReads(data, most))
    assert items == read_shard(data)[0]


# --- memory ------------------------------------------------------------------------------------


class Generated(io.RawIOBase):
    """A stream over chunks that are made as they are read, so that no archive fills the memory."""

    def __init__(self, chunks) -> None:
        self._chunks = chunks

    def read(self, size=-1):
        return next(self._chunks, b"")


def peak_bytes(chunks, **options) -> tuple[int, int]:
    """Items, and the most memory while they were read, generated stream included."""
    tracemalloc.start()
    try:
        samples = open_shard(b"", size=None, stream=Generated(chunks), **options)
        count = sum(1 for _ in samples)
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_members(number: int, pattern: str):
    for i in range(number):
        yield tar_bytes([(pattern.format(i), b"x" * 100), (f"{i:08}.txt", b"t")], end=b"")
    yield END_MARK


@pytest.mark.slow
def test_memory_does_not_grow_with_members():
    count, small = peak_bytes(many_members(1_000, "{:08}.jpg"), metadata=[CAPTION])
    assert count == 1_000
    count, large = peak_bytes(many_members(25_000, "{:08}.jpg"), metadata=[CAPTION])
    assert count == 25_000
    assert (
        large - small
    ) / 24_000 < 160  # bytes a key: the hashes of those seen, in a set that is resized


@pytest.mark.slow
def test_memory_does_not_grow_with_members_of_one_sample():
    def one_sample(number):
        for i in range(number):
            yield tar_bytes([(f"a.{i}.jpg", b"x" * 100), (f"a.{i}.bin", b"")], end=b"")
        yield END_MARK

    count, small = peak_bytes(one_sample(500))
    assert count == 1
    count, large = peak_bytes(one_sample(25_000))
    assert count == 1
    assert large - small < 20_000


def test_huge_member_that_is_no_image_is_passed_over_in_chunks():
    def chunks():
        yield tar_bytes([("a.jpg", b"1")], end=b"")
        yield special("a.bin", tarfile.REGTYPE, size=256 << 20).tobuf(tarfile.GNU_FORMAT)
        for _ in range(256):
            yield bytes(1 << 20)
        yield END_MARK

    count, peak = peak_bytes(chunks())
    assert count == 1
    assert peak < 8 << 20
