"""Markers of shards that were given up."""

import json

import pytest

from pipeline.config import StorageConfig
from pipeline.manifest import failed_url
from pipeline.quarantine import Quarantine
from pipeline.storage import Storage

A, B = "s3://in/a.tar", "https://host/b.tar"


@pytest.fixture
def storage():
    return Storage(StorageConfig())


@pytest.fixture(params=["file", "memory"])
def output(request, tmp_path):
    return f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"


def markers(storage, output):
    found = [json.loads(storage.read(info.url)) for info in storage.list(f"{output}/failed")]
    return {marker["shard"]: marker for marker in found}


def test_a_marker_says_why_and_after_how_many_attempts(storage, output):
    Quarantine(storage, output).add(A, cause="the tar ends early", attempts=3)
    marker = json.loads(storage.read(failed_url(output, A)))
    assert (marker["shard"], marker["error"]) == (A, "the tar ends early")
    assert marker["attempts"] == 3


def test_the_last_cause_of_a_shard_counts(storage, output):
    for attempts in (3, 5):
        Quarantine(storage, output).add(A, cause="cut", attempts=attempts)
    assert [marker["attempts"] for marker in markers(storage, output).values()] == [5]


def test_a_success_removes_its_own_marker_only_also_in_a_later_run(storage, output):
    for shard in (A, B):
        Quarantine(storage, output).add(shard, cause="cut", attempts=3)
    later = Quarantine(storage, output)
    later.release(A)
    later.release(A)
    assert markers(storage, output).keys() == {B}


def test_a_success_in_the_same_run_removes_the_marker(storage, output):
    quarantine = Quarantine(storage, output)
    quarantine.add(A, cause="cut", attempts=3)
    quarantine.release(A)
    assert markers(storage, output) == {}


def test_a_success_without_a_marker_asks_the_store_nothing(storage, output):
    quarantine = Quarantine(storage, output)
    quarantine._storage = None
    quarantine.release(A)
