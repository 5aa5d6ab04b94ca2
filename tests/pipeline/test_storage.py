"""What every kind of storage promises: files, memory, a real S3 server, and that server failing."""

import itertools
import os
import pickle
import threading

import pytest

from pipeline.config import StorageConfig
from pipeline.errors import StorageError
from pipeline.storage import Storage, canonical_url
from tests.integration.s3_server import s3_options

KINDS = ["files", "memory", "s3", "s3 failing"]
_numbers = itertools.count()


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    """(storage, URL of an empty folder in it)"""
    number = next(_numbers)
    if request.param == "files":
        return Storage(StorageConfig(range_mib=1)), canonical_url(str(tmp_path / "run ü%"))
    if request.param == "memory":
        return Storage(StorageConfig(range_mib=1)), f"memory://bucket/run{number}"
    endpoint = request.getfixturevalue("s3").endpoint
    if request.param == "s3 failing":
        proxy = request.getfixturevalue("proxy")
        proxy.plan.rate, proxy.plan.seed = 0.2, number
        endpoint = proxy.endpoint
    config = StorageConfig(s3=s3_options(endpoint), range_mib=1, retries=12)
    return Storage(config), f"s3://bucket/run{number}"


def test_an_object_comes_back_as_it_was(place, tmp_path):
    storage, folder = place
    data = os.urandom(3_500_000)
    source = tmp_path / "source"
    source.write_bytes(data)
    url = f"{folder}/a b/ü%25.tar"
    storage.create(url, source)
    info = storage.info(url)
    assert (info.url, info.size) == (canonical_url(url), len(data))
    assert info.etag
    assert storage.read(url) == data
    assert storage.tail(url, 1000) == data[-1000:]
    assert storage.tail(url, len(data) + 5) == data
    with storage.open(url) as stream:
        assert stream.info == info
        pieces = [stream.read(n) for n in (10, 1_048_566, 1, 2_000_000)]
        pieces.append(stream.read())
        assert stream.tell() == len(data)
        assert stream.read(1) == b""
    assert b"".join(pieces) == data


@pytest.mark.parametrize("data", [b"", b"x"])
def test_tiny_objects(place, data, tmp_path):
    storage, folder = place
    source = tmp_path / "source"
    source.write_bytes(data)
    storage.create(f"{folder}/tiny", source)
    assert storage.info(f"{folder}/tiny").size == len(data)
    with storage.open(f"{folder}/tiny") as stream:
        assert stream.read() == data


def test_create_never_overwrites(place):
    storage, folder = place
    url = f"{folder}/x"
    created = [storage.create(url, data) for data in (b"first", b"second", b"third")]
    assert created in ([True, False, False], [False, False, False])  # the answer may be lost
    assert storage.read(url) == b"first"


def test_one_of_many_creators_wins(place):
    storage, folder = place
    results = {}

    def create(number):
        results[number] = storage.create(f"{folder}/x", b"%d" % number * 100_000)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = {number for number, won in results.items() if won}
    content = storage.read(f"{folder}/x")
    stored = {number for number in results if content == b"%d" % number * 100_000}
    assert len(stored) == 1
    assert winners <= stored  # a winner whose answer was lost does not know it
    assert len(results) == 5


def test_put_overwrites_and_delete_forgives(place):
    storage, folder = place
    storage.put(f"{folder}/f.json", b"one")
    storage.put(f"{folder}/f.json", b"two")
    assert storage.read(f"{folder}/f.json") == b"two"
    storage.delete(f"{folder}/f.json")
    storage.delete(f"{folder}/f.json")
    assert list(storage.list(folder)) == []


@pytest.mark.parametrize("operation", ["info", "read", "open"])
def test_a_missing_object_is_named_at_once(place, operation):
    storage, folder = place
    with pytest.raises(StorageError, match=r"no/such\.tar") as caught:
        getattr(storage, operation)(f"{folder}/no/such.tar")
    assert caught.value.kind == "not_found"
    assert caught.value.operation in ("look up", "read")


def test_listing_is_whole_and_recursive(place):
    storage, folder = place
    names = [f"a/{n:02}.tar" for n in range(20)] + ["a/b/c d.tar", "a-b.tar", "é.tar", "a.tar"]
    for name in names:
        storage.put(f"{folder}/{name}", name.encode())
    storage.put(f"{folder}2/other.tar", b"")
    listed = list(storage.list(f"{folder}/"))
    assert sorted(info.url for info in listed) == sorted(
        canonical_url(f"{folder}/{name}") for name in names
    )
    assert {info.size for info in listed} == {len(name.encode()) for name in names}
    below = [info.url for info in storage.list(f"{folder}/a")]
    assert len(below) == 21
    assert list(storage.list(f"{folder}/none")) == []
    assert all(storage.info(info.url) == info for info in listed[:3])


def test_an_object_that_changes_is_an_error(place):
    storage, folder = place
    url = f"{folder}/shard.tar"
    storage.put(url, b"a" * 5_000_000)
    with storage.open(url) as stream:
        stream.read(10)
        storage.put(url, b"b" * 5_000_000)
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.kind == "changed"
    assert caught.value.url == canonical_url(url)


def test_an_object_that_goes_is_an_error(place):
    storage, folder = place
    url = f"{folder}/shard.tar"
    storage.put(url, b"a" * 5_000_000)
    with storage.open(url) as stream:
        stream.read(10)
        storage.delete(url)
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.kind == "not_found"


def test_it_travels_by_pickle(place):
    storage, folder = place
    storage.put(f"{folder}/x", b"1")
    assert pickle.loads(pickle.dumps(storage)).read(f"{folder}/x") == b"1"
