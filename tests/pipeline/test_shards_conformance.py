"""On well-formed shards the samples are those of webdataset.WebDataset, member for member."""

import importlib
import io
import tarfile

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import MetadataColumn
from tests.pipeline.tar_files import COMPRESSIONS, FORMATS, read_shard, special, tar_bytes

TEXTS = ("txt", "json", "cls", "seg.txt")
COLUMNS = [MetadataColumn(name=suffix, member=suffix) for suffix in TEXTS]

bases = st.text("abXY01_- é日'", min_size=1, max_size=40)
folders = st.lists(st.sampled_from(["d", "v1.2", "é", "..", ".", "long" * 20]), max_size=3)
keys = st.builds(lambda parts, base: "/".join([*parts, base]), folders, bases)
image_suffixes = st.sampled_from(["jpg", "JPG", "jpeg", "png", "webp", "0001.jpg", "TIFF"])
junk = st.sampled_from(
    [
        special("d", tarfile.DIRTYPE),
        special("link.jpg", tarfile.SYMTYPE, linkname="a.jpg"),
        special("pipe", tarfile.FIFOTYPE),
        ("__meta__", b"x"),
        ("__index__/0.jpg", b"x"),
        ("README", b"no extension"),
        (".hidden", b"x"),
    ]
)


@st.composite
def layouts(draw):
    """The members of some samples, those of each in any order, other things between them."""
    layout = []
    for key in draw(st.lists(keys, unique=True, max_size=6)):
        members = [(f"{key}.{draw(image_suffixes)}", draw(st.binary(min_size=1, max_size=2000)))]
        for suffix in draw(st.lists(st.sampled_from([*TEXTS, "npy", ""]), unique=True)):
            data = draw(st.text(max_size=300).filter(lambda text: not text.startswith("\ufeff")))
            members.append((f"{key}.{suffix}", data.encode()))
        layout += draw(st.permutations(members + draw(st.lists(junk, max_size=2))))
    return layout


def webdataset_samples(data: bytes) -> list[dict]:
    """What WebDataset yields; through a scheme of our own, because it leaves files open."""
    with pytest.MonkeyPatch.context() as patch:
        schemes = importlib.import_module("webdataset.gopen").gopen_schemes
        patch.setitem(schemes, "bytes", lambda *args, **options: io.BytesIO(data))
        return list(
            webdataset.WebDataset("bytes://shard.tar", shardshuffle=False, empty_check=False)
        )


def image_of(sample: dict) -> bytes:
    endings = ("jpg", "jpeg", "png", "webp", "tiff")
    (name,) = [name for name in sample if name.rpartition(".")[2] in endings]
    return sample[name]


@settings(deadline=None)
@given(
    layout=layouts(),
    fmt=st.sampled_from(["gnu", "pax"]),
    compression=st.sampled_from(["none", "gzip", "bzip2", "xz"]),
)
def test_samples_equal_those_of_webdataset(layout, fmt, compression):
    data = COMPRESSIONS[compression](tar_bytes(layout, fmt=FORMATS[fmt]))
    expected = webdataset_samples(data)
    items, _ = read_shard(data, metadata=COLUMNS)
    assert [item.id.key for item in items] == [sample["__key__"] for sample in expected]
    assert [item.index for item in items] == list(range(len(expected)))
    for item, sample in zip(items, expected, strict=True):
        assert item.image == image_of(sample)
        texts = {suffix: sample[suffix].decode() if suffix in sample else None for suffix in TEXTS}
        assert item.metadata == texts
