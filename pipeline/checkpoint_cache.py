"""A checkpoint in object storage, copied once to the disk of each machine that loads it."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from encoder.config import CheckpointError
from encoder.source import is_checkpoint_file
from pipeline.localfs import os_errors
from pipeline.storage import ObjectInfo, Storage
from pipeline.urls import canonical_url, is_url, locate

_COPY_BYTES = 8 << 20


def local_checkpoint(checkpoint: str, storage: Storage) -> str:
    """The folder or Hugging Face id to load; what is no storage URL comes back as it is.

    The copy lies in ~/.cache/embedmill (below XDG_CACHE_HOME where that is set), under the sizes
    and versions of the objects: a checkpoint that changed is another copy. Processes of one machine
    wait for the one that copies. Raises CheckpointError where the URL holds no checkpoint,
    StorageError where it cannot be read.
    """
    if not is_url(checkpoint):
        return checkpoint
    place = locate(checkpoint)
    if place.scheme == "file":
        return place.key
    objects = _checkpoint_objects(storage, checkpoint)
    folder = _cache() / f"{place.url.rpartition('/')[2]}-{_version(objects)}"
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            with os_errors(locate(str(folder)), "copy the checkpoint to"):
                _copy(storage, objects, folder)
    return str(folder)


def _checkpoint_objects(storage: Storage, url: str) -> list[ObjectInfo]:
    prefix = f"{canonical_url(url)}/"
    names = [(info, info.url.removeprefix(prefix)) for info in storage.list(prefix)]
    objects = [info for info, name in names if is_checkpoint_file(name)]
    if not objects:
        found = ", ".join(name for _, name in names[:10]) or "nothing"
        raise CheckpointError(
            f"model.checkpoint must be a folder with config.json and *.safetensors, found {found} "
            f"below {prefix}"
        )
    return sorted(objects, key=lambda info: info.url)


def _version(objects: Sequence[ObjectInfo]) -> str:
    facts = "\n".join(f"{info.url} {info.size} {info.etag}" for info in objects)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "embedmill" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, also by a kill
        yield


def _copy(storage: Storage, objects: Sequence[ObjectInfo], folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    for info in objects:
        with storage.open(info.url) as source, (partial / Path(info.url).name).open("wb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
    partial.rename(folder)
