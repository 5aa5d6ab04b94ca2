"""Files: whole or not at all, safe on disk, and nothing left behind when it fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.config import StorageConfig
from pipeline.errors import StorageError
from pipeline.localfs import is_temporary
from pipeline.storage import Storage, canonical_url

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def storage():
    return Storage(StorageConfig(range_mib=1, retries=0))


def mount(folder, options):
    """None; mounts a small memory file system, or skips where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=1m")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("operation", ["create", "create from a file", "put"])
def test_a_full_disk_is_named_and_nothing_is_left(storage, small_disk, tmp_path, operation):
    data = bytes(3 << 20)
    (tmp_path / "source").write_bytes(data)
    given = tmp_path / "source" if "file" in operation else data
    with pytest.raises(StorageError, match="No space left") as caught:
        getattr(storage, operation.split()[0])(str(small_disk / "out" / "a.parquet"), given)
    assert caught.value.kind == "full"
    assert caught.value.url == f"file://{small_disk}/out/a.parquet"
    assert [path.name for path in small_disk.rglob("*")] == ["out"]
    assert storage.create(str(small_disk / "out" / "a.parquet"), b"fits")


def test_a_file_that_is_there_survives_a_failed_put(storage, small_disk):
    storage.put(str(small_disk / "a.json"), b"old")
    with pytest.raises(StorageError):
        storage.put(str(small_disk / "a.json"), bytes(3 << 20))
    assert storage.read(str(small_disk / "a.json")) == b"old"


@pytest.mark.parametrize("target", ["a.parquet", "new/a.parquet"])
def test_a_read_only_folder_is_named(storage, small_disk, target):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for operation in ("create", "put"):
        with pytest.raises(StorageError, match="Read-only") as caught:
            getattr(storage, operation)(str(small_disk / target), b"x")
        assert caught.value.kind == "denied"
    assert list(small_disk.rglob("*")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_folder_without_permission_is_named(storage, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        storage.create(str(tmp_path / "locked" / "a.parquet"), b"x")
    assert caught.value.kind == "denied"


def test_the_file_and_its_folders_are_synced_before_create_returns(storage, tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.create(str(tmp_path / "out" / "embeddings" / "a.parquet"), b"x")
    folders = [str(tmp_path), str(tmp_path / "out")]
    assert synced[:2] == folders  # the new folders' entries
    assert is_temporary(Path(synced[2]).name)  # the data, before it got its name
    assert synced[3:] == [str(tmp_path / "out" / "embeddings")]  # the name


def test_a_killed_writer_leaves_only_a_recognisable_temporary_file(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from pipeline.storage import *;"
        "from pipeline.config import StorageConfig; real = os.fsync;"
        "os.fsync = lambda file: (print('here', flush=True), sys.stdin.read());"
        f"Storage(StorageConfig()).create({str(tmp_path / 'a.parquet')!r}, bytes(1000))"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with writer:
        assert writer.stdout.readline() == b"here\n"
        writer.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert is_temporary(left.name)
    assert left.name.startswith(".")
    assert left.suffix != ".parquet"


@pytest.mark.parametrize("name", ["a.parquet", ".hidden", "x.embedmill-tmp", ".0.embedmill-tmp"])
def test_other_names_are_not_temporary(name):
    assert not is_temporary(name)


def test_a_link_whose_answer_was_lost_is_ours(storage, tmp_path, monkeypatch):
    """NFS repeats a request by itself, and the second time the name is there already."""
    real = os.link

    def link_twice(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert storage.create(str(tmp_path / "a"), b"x") is True


def test_without_links_create_still_does_not_overwrite(storage, tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert storage.create(str(tmp_path / "a"), b"first") is True
    assert storage.create(str(tmp_path / "a"), b"second") is False
    assert storage.read(str(tmp_path / "a")) == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_links_are_followed_but_not_in_circles(storage, tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.tar").write_bytes(b"b")
    (tmp_path / "data" / "a.tar").write_bytes(b"a")
    (tmp_path / "data" / "deep" / "c.tar").symlink_to(tmp_path / "data" / "a.tar")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "deep" / "circle").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "dangling").symlink_to(tmp_path / "nothing")
    found = sorted(
        info.url.rpartition("/data/")[2] for info in storage.list(str(tmp_path / "data"))
    )
    assert found == ["a.tar", "deep/c.tar", "linked/b.tar"]


def test_a_folder_is_no_object(storage, tmp_path):
    for operation in (storage.info, storage.read, storage.open):
        with pytest.raises(StorageError) as caught:
            operation(str(tmp_path))
        assert caught.value.kind == "not_found"


def test_a_file_written_in_place_is_noticed(storage, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"a" * (6 << 20))
    with storage.open(str(path)) as stream:
        stream.read(1)
        time.sleep(0.02)
        with open(path, "r+b") as file:
            file.write(b"b")
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.kind == "changed"


def test_names_that_are_no_text_survive(storage, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9 100%.tar")
    with open(path, "wb") as file:
        file.write(b"x")
    (info,) = storage.list(str(tmp_path))
    assert info.url.endswith("/caf%E9%20100%25.tar")
    assert storage.read(info.url) == b"x"
    assert canonical_url(os.fsdecode(path)) == info.url
