"""Rows and rejects of one shard: groups, limits, full disks. Whole runs test the rest."""

import subprocess
import tempfile

import pyarrow.parquet as pq
import pytest

from pipeline import writer as writer_module
from pipeline.errors import ShardError, StorageError
from pipeline.records import Rejection, RejectReason, SampleId
from tests.pipeline.outputs import Output, shard_id, unit_vectors
from tests.pipeline.test_localfs import mount


@pytest.fixture
def output(tmp_path):
    return Output(f"file://{tmp_path}/out")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of spools: a file system of 1 MiB."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    mount(folder, "size=1m")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def keys(count):
    return tuple(f"k{number}" for number in range(count))


def test_rows_leave_memory_in_groups(output, monkeypatch):
    monkeypatch.setattr(writer_module, "_ROW_GROUP", 10)
    with output.writer("a") as writer:
        end = output.fill(writer, "a", keys(25), {})
        assert len(writer._ready) == 0  # 25 came at once
        writer.publish(end)
    assert output.read("a").metadata.num_rows == 25


def test_wide_rows_leave_memory_in_smaller_groups(output, monkeypatch):
    monkeypatch.setattr(writer_module, "_ROW_GROUP_BYTES", 3 * 8 * 4)
    with output.writer("a") as writer:
        for number in range(7):
            writer.add(*output.pack("a", number, f"k{number}"))
            assert len(writer._ready) < 3
        writer.publish(output.end("a", read=7, embedded=7))
    groups = output.read("a").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 1]


def test_rejects_leave_in_groups_too(output, monkeypatch, tmp_path):
    monkeypatch.setattr(writer_module, "_ROW_GROUP", 10)
    with output.writer("a") as writer:
        for index in range(25):
            writer.reject([rejection(index)])
        writer.publish(output.end("a", read=25, embedded=0))
    (path,) = (tmp_path / "out" / "rejects").iterdir()
    groups = pq.read_metadata(path)
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [10, 10, 5]
    assert pq.read_table(path).column("index").to_pylist() == list(range(25))


def rejection(index):
    sample = SampleId(shard=shard_id("a"), key=f"k{index}")
    return Rejection(id=sample, index=index, reason=RejectReason.EMPTY_IMAGE, detail="")


def test_an_output_that_grows_too_large_is_refused_with_the_remedy(output, monkeypatch, tmp_path):
    monkeypatch.setattr(writer_module, "MAX_SHARD_OUTPUT_BYTES", 20_000)
    monkeypatch.setattr(writer_module, "_ROW_GROUP", 100)
    vectors = unit_vectors(2000)
    number = 0

    def add_all(writer):
        nonlocal number
        for number in range(len(vectors)):
            writer.add(*output.pack("a", number, f"k{number}", vectors=vectors[number, None]))

    with output.writer("a") as writer, pytest.raises(ShardError) as caught:
        add_all(writer)
    assert "below 20,000 bytes" in str(caught.value)
    assert "Use smaller shards" in str(caught.value)
    assert str(caught.value).startswith("s3://in/a.tar: ")
    assert number < 1000  # long before the end of the shard
    assert output.urls() == set()


def test_an_output_that_is_too_large_only_at_its_end_is_not_published(output, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_SHARD_OUTPUT_BYTES", 500)
    with pytest.raises(ShardError, match="smaller shards"):
        output.publish("a")
    assert output.urls() == set()


def test_a_full_local_disk_is_named_and_nothing_is_left(output, temporary, monkeypatch):
    monkeypatch.setattr(writer_module, "_ROW_GROUP", 10_000)
    count = 100_000
    with pytest.raises(StorageError, match="No space left") as caught:
        output.publish("a", keys(count), vectors=unit_vectors(count, seed="a"))
    assert caught.value.kind == "full"
    assert str(temporary) in str(caught.value)
    assert list(temporary.iterdir()) == []
    assert output.urls() == set()
    output.publish("a")
    assert len(output.urls()) == 1


def test_a_disk_without_room_for_a_folder_is_named(output, temporary):
    with pytest.raises(OSError, match="No space left"):
        (temporary / "full").write_bytes(bytes(2 << 20))
    with pytest.raises(StorageError, match="No space left"):
        output.publish("a")
