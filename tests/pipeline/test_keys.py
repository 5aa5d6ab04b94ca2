"""Names: WebDataset's split, what is skipped, and printable keys that never meet."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from pipeline.keys import is_image, is_meta_key, printable, skip_reason, split_name

plain_names = st.text("ab._-/é日 ", min_size=1, max_size=20)


@given(name=plain_names)
def test_first_dot_splits_as_webdataset_does(name):
    if skip_reason(name) is None:
        assert split_name(name, "first_dot") == base_plus_ext(name)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("a.jpg", ("a", "jpg"), ("a", "jpg")),
        ("d.x/a.b.JPG", ("d.x/a", "b.jpg"), ("d.x/a.b", "jpg")),
        ("/abs/../a.jpg", ("/abs/../a", "jpg"), ("/abs/../a", "jpg")),
        ("a.", ("a", ""), ("a", "")),
        ("a..jpg", ("a", ".jpg"), ("a.", "jpg")),
        ("d.x/a", None, None),
        ("d/.a", None, None),
    ],
)
def test_key_and_suffix(name, first, last):
    assert split_name(name, "first_dot") == first
    assert split_name(name, "last_dot") == last


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("d/._a.jpg", "resource_fork"),
        ("__MACOSX/d/a.jpg", "resource_fork"),
        ("d/__MACOSX/a.jpg", "resource_fork"),
        ("d/.DS_Store", "hidden"),
        (".a.jpg", "hidden"),
        ("__meta__", "meta"),
        ("__index__/a.jpg", "meta"),
        ("README", "no_extension"),
        ("d.x/README", "no_extension"),
        ("d/a.jpg", None),
        ("d/__a__.jpg", None),
        ("_a_.jpg", None),
    ],
)
def test_names_that_are_no_sample(name, reason):
    assert skip_reason(name) == reason


def test_image_is_told_by_the_last_part_of_the_suffix():
    assert is_image("jpg", frozenset())
    assert is_image("v1.0001.jpg", frozenset())
    assert not is_image("json", frozenset())
    assert not is_image("", frozenset())
    assert not is_image("jpg.json", frozenset())


def test_named_extensions_decide_alone():
    assert is_image("rgb.png", frozenset({"rgb.png"}))
    assert not is_image("mask.png", frozenset({"rgb.png", "png"}))


def test_meta_key():
    assert is_meta_key("d/__meta__")
    assert not is_meta_key("__meta__/a")


def unprintable(text: str) -> str:
    """The inverse of printable, for the proof that no two names meet."""
    data = re.sub(
        rb"\\x([0-9a-f]{2})",
        lambda found: bytes.fromhex(found[1].decode()),
        text.encode("utf-8", "surrogateescape"),
    )
    return data.decode("utf-8", "surrogateescape")


names = st.one_of(
    st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text("\\x5cff\n\x7f\udcffé", max_size=12),
)


@given(name=names)
@example(name="\\xff")
@example(name="\udcff")
@example(name="\\\udcff")
def test_printable_keys_are_safe_and_can_be_turned_back(name):
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    text = printable(name)
    text.encode("utf-8")
    assert not re.search(r"[\x00-\x1f\x7f]", text)
    assert unprintable(text) == name


def test_printable_leaves_ordinary_names_alone():
    assert printable("d/é日 \\n.jpg") == "d/é日 \\n.jpg"
    assert printable(b"caf\xe9".decode("utf-8", "surrogateescape")) == "caf\\xe9"
