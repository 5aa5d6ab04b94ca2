"""One canonical form for each object, and no secrets in what is shown."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.urls import canonical_url, locate, without_secrets


@pytest.mark.parametrize(
    ("given_url", "canonical"),
    [
        ("/data/a.tar", "file:///data/a.tar"),
        ("/data//x/../a.tar", "file:///data/a.tar"),
        ("/data/out/", "file:///data/out"),
        ("/", "file:///"),
        ("//data/a.tar", "file:///data/a.tar"),
        ("s3://bucket/", "s3://bucket"),
        ("/data/50%20 off?.tar", "file:///data/50%2520%20off%3F.tar"),
        ("/data/date=2024/a,b+c.tar", "file:///data/date=2024/a,b+c.tar"),
        ("/data/ü.tar", "file:///data/%C3%BC.tar"),
        ("file:///data/%c3%bc.tar", "file:///data/%C3%BC.tar"),
        ("file://localhost/data/a.tar", "file:///data/a.tar"),
        ("s3://bucket/a b.tar", "s3://bucket/a%20b.tar"),
        ("s3://bucket/a%20b.tar", "s3://bucket/a%20b.tar"),
        ("s3://bucket/out/", "s3://bucket/out"),
        ("s3://bucket", "s3://bucket"),
        ("gs://Bucket/a.tar", "gs://Bucket/a.tar"),
        ("https://user:pass@Example.org:8080/a.tar?sig=1#x", "https://example.org:8080/a.tar"),
        ("HTTPS://example.org/a.tar", "https://example.org/a.tar"),
        ("memory://b/a/b.tar", "memory://b/a/b.tar"),
    ],
)
def test_canonical_form(given_url, canonical):
    assert canonical_url(given_url) == canonical
    assert canonical_url(canonical) == canonical


def test_relative_and_home_paths_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert canonical_url("a.tar") == f"file://{tmp_path}/a.tar"
    assert canonical_url("~/a.tar") == "file:///home/someone/a.tar"


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_every_file_name_survives(name):
    path = os.path.abspath(os.path.join("/data", os.fsdecode(name).lstrip("/")))
    url = canonical_url(path)
    assert locate(url).key == path
    assert canonical_url(url) == url
    assert url.isascii()
    assert " " not in url


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1))
def test_every_key_survives(key):
    key = "k" + key.strip("/")
    url = canonical_url(
        f"s3://bucket/{key}".replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    )
    assert locate(url).key == key
    assert canonical_url(url) == url


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "non-empty"),
        ("ftp://host/a.tar", "scheme must be one of"),
        ("s3a://bucket/a.tar", "scheme must be one of"),
        ("s3:///a.tar", "bucket"),
        ("file://host/a.tar", "file:///absolute/path"),
        ("s3://bucket/what?.tar", "%3F"),
        ("gs://bucket/a#b.tar", "%23"),
        ("s3://bucket/a\tb.tar", "control"),
    ],
)
def test_what_is_no_location_is_refused(bad, reason):
    with pytest.raises(ConfigError, match=reason):
        canonical_url(bad)


def test_refusals_show_no_password():
    with pytest.raises(ConfigError) as caught:
        canonical_url("ftp://user:hunter2@host/a.tar?token=hunter2")
    assert "hunter2" not in str(caught.value)


def test_secrets_leave_texts():
    text = (
        'GET "https://u:hunter2@h/a?X-Sig=hunter2&b=1" (http://h/b?t=hunter2) s3://b/x-?.tar done'
    )
    assert without_secrets(text) == 'GET "https://h/a" (http://h/b) s3://b/x-?.tar done'


def test_a_location_shows_no_secret():
    place = locate("https://user:hunter2@host/a.tar?token=hunter2")
    assert "hunter2" not in repr(place)
    assert "hunter2" in place.source


def test_paths_are_not_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    link = Path(tmp_path / "link")
    link.symlink_to(tmp_path / "real")
    assert canonical_url(str(link / "a.tar")) == f"file://{tmp_path}/link/a.tar"


@given(
    st.from_regex(
        r"(s3|gs)://[a-z.]{1,3}[@:]?(/{0,2}[a-z0-9%._~ =:@?#+-]{0,4}){0,3}", fullmatch=True
    )
)
@settings(max_examples=500)
def test_the_short_cut_for_canonical_urls_changes_none(url):
    try:
        expected = locate(url).url
    except ConfigError:
        with pytest.raises(ConfigError):
            canonical_url(url)
    else:
        assert canonical_url(url) == expected
