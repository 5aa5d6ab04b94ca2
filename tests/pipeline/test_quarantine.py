"""Records of shards that were given up."""

import pytest

from pipeline.config import StorageConfig
from pipeline.errors import OutputError, ShardError, StorageError
from pipeline.manifest import failed_url
from pipeline.quarantine import (
    describe_failure,
    failed_urls,
    read_failures,
    remove_failure,
    write_failure,
)
from pipeline.storage import Storage

A, B = "s3://in/a.tar", "https://host/b.tar"


@pytest.fixture
def storage():
    return Storage(StorageConfig())


@pytest.fixture(params=["file", "memory"])
def output(request, tmp_path):
    return f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"


def test_a_failure_is_read_as_it_was_written(storage, output):
    failure = describe_failure(A, ShardError("the tar ends early", A), 3)
    write_failure(storage, output, failure)
    assert list(read_failures(storage, output)) == [failure]
    assert failure.error == "ShardError"
    assert failure.message == "s3://in/a.tar: the tar ends early"
    assert failure.attempts == 3


def test_the_last_failure_of_a_shard_counts(storage, output):
    for attempts in (3, 5):
        write_failure(storage, output, describe_failure(A, ShardError("cut"), attempts))
    assert [failure.attempts for failure in read_failures(storage, output)] == [5]


def test_a_success_removes_its_own_failure_only(storage, output):
    for shard in (A, B):
        write_failure(storage, output, describe_failure(shard, ShardError("cut"), 3))
    assert failed_urls(storage, output) == {failed_url(output, A), failed_url(output, B)}
    remove_failure(storage, output, A)
    remove_failure(storage, output, A)  # two runs may do so
    assert [failure.shard for failure in read_failures(storage, output)] == [B]


def test_an_output_without_failures_has_none(storage, output):
    assert failed_urls(storage, output) == set()
    assert list(read_failures(storage, output)) == []


def test_the_message_holds_no_secret(storage, output):
    error = StorageError("no answer from https://me:pw@host/b.tar?sig=SECRET", B, "read")
    write_failure(storage, output, describe_failure(B, error, 3))
    text = storage.read(failed_url(output, B)).decode()
    assert "no answer from https://host/b.tar" in text
    assert "SECRET" not in text
    assert "pw" not in text


@pytest.mark.parametrize("content", [b"", b"[]", b'{"shard": "s3://in/a.tar"}'])
def test_a_foreign_object_among_the_failures_is_named(storage, output, content):
    storage.put(f"{output}/failed/notes.json", content)
    with pytest.raises(OutputError, match=r"failed/notes.json must be the record"):
        list(read_failures(storage, output))
