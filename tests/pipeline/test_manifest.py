"""What is left to do, from a listing."""

import pytest

from pipeline import manifest
from pipeline.config import StorageConfig
from pipeline.errors import ConfigError
from pipeline.manifest import embeddings_url, list_committed, output_name, pending_shards
from pipeline.storage import Storage

OUTPUT = "memory:///manifest"


@pytest.fixture
def storage():
    storage = Storage(StorageConfig())
    yield storage
    for info in list(storage.list(OUTPUT)):
        storage.delete(info.url)


def shard(number):
    return f"s3://in/{number:03d}.tar"


def pending(storage, urls):
    return pending_shards(list_committed(storage, OUTPUT).numbers, urls)


def test_shards_without_an_output_are_pending_in_their_order(storage):
    for number in (3, 0, 7):
        storage.put(embeddings_url(OUTPUT, shard(number)), b"")
    urls = [shard(number) for number in (9, 3, 1, 0)]
    assert pending(storage, urls) == [shard(9), shard(1)]


def test_all_is_pending_before_the_first_run(storage):
    assert pending(storage, [shard(1)]) == [shard(1)]
    assert pending(storage, []) == []


def test_a_signed_url_is_done_whatever_its_signature(storage):
    storage.put(embeddings_url(OUTPUT, "https://host/a.tar"), b"")
    urls = ["https://host/a.tar?sig=2", "https://host/b.tar?sig=2"]
    assert pending(storage, urls) == [urls[1]]


def test_other_objects_are_no_outputs(storage):
    name = output_name(shard(1))
    for other in (f"embeddings/{name}.parquet.tmp", f"rejects/{name}.parquet", "embeddings/x"):
        storage.put(f"{OUTPUT}/{other}", b"")
    assert pending(storage, [shard(1)]) == [shard(1)]


def test_two_shards_with_one_output_are_named(storage, monkeypatch):
    with pytest.raises(ConfigError, match="one output name: 001-"):
        pending(storage, [shard(0), shard(1), "s3://in/x.tar", shard(1)])
    monkeypatch.setattr(manifest, "_hash_hex", lambda shard: "0" * 16)
    with pytest.raises(ConfigError, match="one output name: 000-0000000000000000"):
        pending(storage, [shard(0), shard(1)])


def test_the_sample_of_what_is_done_comes_from_all_of_it(storage):
    urls = [embeddings_url(OUTPUT, shard(number)) for number in range(200)]
    for url in urls:
        storage.put(url, b"")
    assert sorted(list_committed(storage, OUTPUT).sample) == urls
    picked = {url for _ in range(600) for url in list_committed(storage, OUTPUT, sample=10).sample}
    assert len(list_committed(storage, OUTPUT, sample=10).sample) == 10
    assert picked == set(urls)  # each is missed with a chance of 0.95 ** 600
