"""Shard specifications to shards: order, doubles, wildcards, and messages that help."""

import re

import pytest

from pipeline import specs
from pipeline.config import InputConfig, StorageConfig
from pipeline.errors import ConfigError
from pipeline.specs import list_shards, name_shards
from pipeline.storage import Storage
from pipeline.urls import canonical_url


@pytest.fixture
def storage():
    return Storage(StorageConfig(retries=0))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with data/0.tar to data/3.tar, a nested one and other files."""
    monkeypatch.chdir(tmp_path)
    for name in ("0.tar", "1.tar", "2.tar", "3.tar", "notes.txt", ".hidden.tar", "deep/er/4.tar"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


@pytest.fixture
def names(folder, storage):
    """A function from specifications to the paths of shards, relative to the working folder."""

    def list_names(shards=(), **config):
        shards = shards if isinstance(shards, str) else list(shards)
        urls = list_shards(InputConfig(shards=shards, **config), storage)
        base = canonical_url(str(folder)) + "/"
        return [url.removeprefix(base) for url in urls]

    return list_names


def test_brace_ranges(names):
    assert names("data/{0..2}.tar") == ["data/0.tar", "data/1.tar", "data/2.tar"]
    assert names("data/{3,1}.tar") == ["data/3.tar", "data/1.tar"]


def test_leading_zeros_of_a_range_are_kept(names, folder):
    for i in (8, 9, 10):
        (folder / f"{i:05}.tar").touch()
    assert names("{00008..00010}.tar") == ["00008.tar", "00009.tar", "00010.tar"]


def test_globs_are_sorted_and_stay_in_their_folder(names):
    assert names("data/*.tar") == [f"data/{i}.tar" for i in range(4)]
    assert names("data/[!12].tar") == ["data/0.tar", "data/3.tar"]
    assert names("data/?.t*") == [f"data/{i}.tar" for i in range(4)]
    assert names("data/**/4.tar") == ["data/deep/er/4.tar"]


def test_braces_and_globs_mix(names):
    assert names("data/{[23],0}.t?r") == ["data/2.tar", "data/3.tar", "data/0.tar"]


def test_lists_keep_their_order_and_the_same_shard_is_one(names, folder):
    specs = ["data/2.tar", "data/*.tar", "./data/../data/1.tar", f"file://{folder}/data/0.tar"]
    assert names(specs) == ["data/2.tar", "data/0.tar", "data/1.tar", "data/3.tar"]


def test_text_file_of_specifications(names, folder):
    lines = ["﻿# a comment", "", "  data/3.tar  ", "data/{0..1}.tar\r", "data/1*.tar"]
    (folder / "list.txt").write_text("\n".join(lines), newline="")
    expected = ["data/3.tar", "data/0.tar", "data/1.tar"]
    assert names(shards_file="list.txt") == expected
    assert names("data/2.tar", shards_file=str(folder / "list.txt")) == ["data/2.tar", *expected]


def test_text_file_without_specifications_is_an_error(names, folder):
    (folder / "list.txt").write_text("# nothing\n\n")
    with pytest.raises(ConfigError, match=r"at least one shard: list\.txt"):
        names(shards_file="list.txt")


@pytest.mark.parametrize(
    "name", ["odd[1].tar", "odd{1,2}.tar", "odd*.tar", "odd%20.tar", "ö ü.tar"]
)
def test_path_that_exists_means_itself(names, folder, storage, name):
    (folder / name).touch()
    (folder / "odd1.tar").touch()
    (url,) = list_shards(InputConfig(shards=name), storage)
    assert url == canonical_url(str(folder / name))
    assert storage.info(url).size == 0


def test_home_folder_is_expanded(names, folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/data/[01].tar") == ["data/0.tar", "data/1.tar"]
    assert names("~/data/2.tar") == ["data/2.tar"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("data/*.tgz", r"no shard matches 'data/\*\.tgz': looked in .*/data, which has .*0\.tar"),
        ("nowhere/*.tar", r"looked in .*/nowhere, which does not exist"),
        (
            "data/{2..8}.tar",
            r"not found: .*/data/4\.tar, .*/data/5\.tar, .*/data/6\.tar and 2 more",
        ),
        ("missing.tar", r"'missing\.tar' must name files that exist"),
        ("data", r"'data' is a folder; write 'data/\*\.tar'"),
        ("data/{0..1.tar", "braces"),
        ("{0..99999999999}.tar", "more than 2,000,000 shards"),
        pytest.param(
            "{0..9999}{0..9999}.tar", "more than 2,000,000 shards", marks=pytest.mark.slow
        ),
        ("pipe:curl https://u:secret@host/a.tar", r"^(?!.*secret).*commands are not run"),
        ("https://host/*.tar?key=secret", r"^(?!.*secret).*cannot be listed"),
        ("ftp://host/a.tar", "the scheme must be one of"),
    ],
)
def test_what_matches_nothing_says_what_was_looked_for(names, spec, message):
    with pytest.raises(ConfigError) as caught:
        names(spec)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_empty_folder_is_said_to_be_empty(names, folder):
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="which is empty"):
        names("empty/*")


def test_globs_in_object_stores(storage):
    keys = ["x/0.tar", "x/1.tar", "x/10.tar", "x/a b.tar", "x/deep/2.tar", "x/.h.tar", "y/3.tar"]
    for key in keys:
        storage.put(f"memory://globs/{key}".replace(" ", "%20"), b"")

    def found(spec):
        urls = list_shards(InputConfig(shards=spec), storage)
        return [url.removeprefix("memory://globs/") for url in urls]

    assert found("memory://globs/x/?.tar") == ["x/0.tar", "x/1.tar"]
    assert found("memory://globs/x/*.tar") == ["x/0.tar", "x/1.tar", "x/10.tar", "x/a%20b.tar"]
    assert found("memory://globs/x/[!0]*.tar") == ["x/1.tar", "x/10.tar", "x/a%20b.tar"]
    assert found("memory://globs/x/a%20?.tar") == ["x/a%20b.tar"]
    assert found("memory://globs/*/*/2.tar") == ["x/deep/2.tar"]
    assert found("memory://globs/**/2.tar") == ["x/deep/2.tar"]
    assert found("memory://globs/**/3.tar") == ["y/3.tar"]
    assert found("memory://globs/x/d*/**") == ["x/deep/2.tar"]
    assert found("memory://globs/x/.*") == ["x/.h.tar"]
    with pytest.raises(ConfigError, match=r"looked in memory://globs/x/, which has .*\.tar"):
        found("memory://globs/x/*.tgz")
    with pytest.raises(ConfigError, match="which is empty"):
        found("memory://globs/z/*.tar")


def test_remote_names_are_canonical_and_not_looked_up(storage):
    specs = ["s3://b/a c/{0..1}.tar", "s3://b/a%20c/0.tar", "gs://g/y.tar"]
    assert list_shards(InputConfig(shards=specs), storage) == [
        "s3://b/a%20c/0.tar",
        "s3://b/a%20c/1.tar",
        "gs://g/y.tar",
    ]


def test_signed_urls_stay_as_they_were_given_and_count_once(storage):
    specs = ["https://h/{0..1}.tar?sig=a*b", "https://h/0.tar?sig=other", "https://u:p@h/2.tar"]
    urls = list_shards(InputConfig(shards=specs), storage)
    assert urls == ["https://h/0.tar?sig=a*b", "https://h/1.tar?sig=a*b", "https://u:p@h/2.tar"]
    assert [canonical_url(url) for url in urls] == [f"https://h/{i}.tar" for i in range(3)]


def test_shards_named_in_full_need_not_exist(storage, folder):
    base = canonical_url(str(folder))
    named = name_shards(["gone/{0..1}.tar", "s3://gone/a.tar", "https://h/b.tar?x=1"], storage)
    assert named == [
        f"{base}/gone/0.tar",
        f"{base}/gone/1.tar",
        "s3://gone/a.tar",
        "https://h/b.tar",
    ]
    named = name_shards(["data/[01].tar", "data/{0,9}.tar"], storage)
    assert named == [f"{base}/data/{i}.tar" for i in (0, 1, 9)]
    with pytest.raises(ConfigError, match="no shard matches"):
        name_shards(["data/7*.tar"], storage)


def test_doubles_do_not_count_towards_the_limit(storage, monkeypatch):
    monkeypatch.setattr(specs, "MAX_SHARDS", 4)
    urls = list_shards(InputConfig(shards=["s3://b/{0..3}.tar", "s3://b/{1..3}.tar"]), storage)
    assert urls == [f"s3://b/{i}.tar" for i in range(4)]
    with pytest.raises(ConfigError, match="at most 4 shards"):
        list_shards(InputConfig(shards=["s3://b/{0..3}.tar", "s3://b/4.tar"]), storage)
