"""Runs whose output folder is full or read-only: a clear error, nothing half-written, continued."""

import subprocess

import pytest

from pipeline.localfs import is_temporary
from pipeline.run_record import open_output
from pipeline.verify import input_shards, verify_output
from tests.integration.conftest import embedmill, read_rows, write_shard
from tests.pipeline.test_localfs import mount


@pytest.fixture
def disk(tmp_path):
    """The output folder: a file system of 64 KiB."""
    folder = tmp_path / "out"
    folder.mkdir()
    mount(folder, "size=64k")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def shards(tmp_path, photos):
    names = list(photos)
    for number in range(6):
        members = {f"{i}-{name}": photos[name] for i, name in enumerate(names[:8])}
        write_shard(tmp_path / "shards" / f"{number}.tar", members)


def test_a_read_only_output_is_named_before_work_starts(disk, shards, write_config):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    run = embedmill("run", write_config())
    assert run.returncode == 2
    said = " ".join(run.stderr.split())
    assert f"cannot create file://{disk}/_run.json: Read-only file system" in said
    assert "started a local Ray" not in said
    assert list(disk.iterdir()) == []


@pytest.mark.slow
def test_a_full_output_is_named_and_the_run_continues_with_more_room(disk, shards, write_config):
    config = write_config()
    run = embedmill("run", config)
    assert run.returncode == 2, run.stderr  # no shard is blamed for it
    assert "No space left on device" in run.stderr
    assert "Traceback" not in run.stderr
    assert [path for path in disk.rglob("*") if is_temporary(path.name)] == []
    report = verified(disk)
    assert 0 < report.shards < 6
    assert report.counts.keys() == {"missing"}  # whole where there is something
    subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
    again = embedmill("run", config)
    assert again.returncode == 0, again.stderr
    assert verified(disk).ok
    assert len(read_rows(disk)) == 48


def verified(output):
    storage, url, record = open_output(str(output), None)
    inputs, _ = input_shards(storage, record, specs=None, config=None)
    return verify_output(storage, url, record, inputs)[0]
