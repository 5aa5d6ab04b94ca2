from pathlib import Path

import pytest

from encoder.checkpoint import describe_checkpoint
from encoder.config import CheckpointError
from encoder.seeded import write_seeded_checkpoint
from pipeline.checkpoint_cache import local_checkpoint
from pipeline.config import StorageConfig
from pipeline.errors import StorageError
from pipeline.storage import Storage

URL = "memory://models/base v2"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embedmill" / "checkpoints"


@pytest.fixture
def folder(tmp_path):
    return write_seeded_checkpoint(tmp_path / "checkpoint", seed=1)


def upload(folder, storage, url=URL):
    for file in folder.iterdir():
        storage.put(f"{url}/{file.name}", file.read_bytes())


def test_ids_and_paths_stay_and_file_urls_become_paths(tmp_path):
    storage = Storage(StorageConfig())
    assert local_checkpoint("google/siglip2", storage) == "google/siglip2"
    assert local_checkpoint("some/folder", storage) == "some/folder"
    assert local_checkpoint(f"file://{tmp_path}/a%20b", storage) == f"{tmp_path}/a b"


def test_a_copy_has_the_checkpoints_files_and_no_others(folder, cache):
    storage = Storage(StorageConfig())
    upload(folder, storage)
    storage.put(f"{URL}/pytorch_model.bin", b"pickle")
    storage.put(f"{URL}/older/model.safetensors", b"another checkpoint")
    copy = Path(local_checkpoint(URL, storage))
    assert copy.parent == cache
    assert {file.name for file in copy.iterdir()} == {file.name for file in folder.iterdir()}
    assert describe_checkpoint(copy).digest == describe_checkpoint(folder).digest


def test_the_second_time_nothing_is_read_until_the_checkpoint_changes(folder):
    storage = Storage(StorageConfig())
    upload(folder, storage)
    first = local_checkpoint(URL, storage)
    marker = Path(first, "marker")
    marker.touch()
    assert local_checkpoint(URL, storage) == first
    assert marker.exists()
    upload(write_seeded_checkpoint(folder.parent / "other", seed=2), storage)
    second = local_checkpoint(URL, storage)
    assert second != first
    assert describe_checkpoint(second).digest != describe_checkpoint(first).digest


def test_what_a_killed_process_left_is_no_checkpoint(folder, cache):
    storage = Storage(StorageConfig())
    upload(folder, storage)
    copy = Path(local_checkpoint(URL, storage))
    partial = copy.with_name(f"{copy.name}.partial")
    copy.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    again = Path(local_checkpoint(URL, storage))
    assert describe_checkpoint(again).digest == describe_checkpoint(folder).digest
    assert not partial.exists()


def test_a_url_without_a_checkpoint_is_named_with_what_is_there():
    storage = Storage(StorageConfig())
    storage.put("memory://nowhere/readme.txt", b"")
    with pytest.raises(CheckpointError, match=r"found readme\.txt below memory://nowhere/"):
        local_checkpoint("memory://nowhere", storage)
    with pytest.raises(CheckpointError, match="found nothing below memory://empty/"):
        local_checkpoint("memory://empty", storage)


def test_a_cache_that_cannot_be_written_is_named(folder, cache):
    storage = Storage(StorageConfig())
    upload(folder, storage)
    copy = Path(local_checkpoint(URL, storage))
    copy.rename(copy.with_name("moved"))
    copy.with_name(f"{copy.name}.partial").write_bytes(b"a file where the folder must be")
    with pytest.raises(StorageError, match="cannot copy the checkpoint to"):
        local_checkpoint(URL, storage)
