"""Where a checkpoint's files are: a local folder, or a Hugging Face repository pinned to a commit.

Only JSON and safetensors files are ever opened; pickle files run code when loaded. No torch.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from encoder.config import CheckpointError
from encoder.processor import PROCESSOR_FILES

__all__ = [
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "CheckpointFiles",
    "find_checkpoint",
    "is_checkpoint_file",
]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_REPOSITORY_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """Files of one checkpoint on local disk."""

    folder: Path
    revision: str | None  # commit of the Hugging Face repository, None for a folder
    weight_files: tuple[Path, ...]
    index: dict[str, str] | None  # tensor name to file name where the weights are sharded


def find_checkpoint(checkpoint: str | Path, *, revision: str | None = None) -> CheckpointFiles:
    """The files of a checkpoint; those of a Hugging Face repository are downloaded first.

    `checkpoint` is a folder, or else a repository id such as google/siglip2-base-patch16-naflex.
    `revision` is a branch, tag or commit of the repository; what comes back holds the commit that
    it stood for. Raises CheckpointError.
    """
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"revision must be left out for a local folder, found {revision!r} for {folder}."
            )
        return _local_files(folder, revision=None)
    if folder.exists() or not _REPOSITORY_ID.fullmatch(str(checkpoint)):
        found = "a file" if folder.exists() else "no such folder"
        raise CheckpointError(
            f"A checkpoint must be a folder with config.json and {WEIGHTS_FILE}, or a Hugging Face "
            f"repository id (owner/name), found {found} at {str(checkpoint)!r}."
        )
    return _repository_files(str(checkpoint), revision)


def is_checkpoint_file(name: str) -> bool:
    """True for the file names that a checkpoint is read from."""
    if name in (CONFIG_FILE, INDEX_FILE, *PROCESSOR_FILES):
        return True
    return name.endswith(".safetensors") and "/" not in name


def _local_files(folder: Path, *, revision: str | None) -> CheckpointFiles:
    index: dict[str, str] | None = None
    if (folder / WEIGHTS_FILE).is_file():
        files = [folder / WEIGHTS_FILE]
    elif (folder / INDEX_FILE).is_file():
        index = _read_index(folder / INDEX_FILE)
        files = [folder / name for name in sorted(set(index.values()))]
    else:
        raise CheckpointError(_no_weights(str(folder), sorted(p.name for p in folder.iterdir())))
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{folder / INDEX_FILE} names {file.name}, which must be beside it and is not. "
                "Copy or download all shards of the checkpoint."
            )
    return CheckpointFiles(folder=folder, revision=revision, weight_files=tuple(files), index=index)


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = {str(name): str(file) for name, file in index.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} must be JSON with a weight_map from tensor names to files, found "
            f"{type(error).__name__}: {error}."
        ) from error
    for file in names.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path}: weight_map must name safetensors files beside it, found {file!r}."
            )
    return names


def _no_weights(where: str, found: list[str]) -> str:
    pickles = [name for name in found if any(Path(name).match(p) for p in _PICKLE_PATTERNS)]
    if pickles:
        return (
            f"A checkpoint's weights must be safetensors, found only pickle files in {where}: "
            f"{', '.join(pickles[:5])}. Pickle files can run code and are not loaded; convert them "
            "with transformers' save_pretrained."
        )
    return (
        f"A checkpoint must hold {WEIGHTS_FILE} or {INDEX_FILE}, found neither in {where}, which "
        f"holds: {', '.join(found[:10]) or 'nothing'}."
    )


def _repository_files(repository: str, revision: str | None) -> CheckpointFiles:
    # <cache>/snapshots/<commit>/config.json: the first answer pins the commit of all later ones
    folder = _download(repository, CONFIG_FILE, revision).parent
    commit = folder.name
    any(_download_if_there(repository, name, commit) for name in PROCESSOR_FILES)  # the first
    if _download_if_there(repository, WEIGHTS_FILE, commit):
        return _local_files(folder, revision=commit)
    if not _download_if_there(repository, INDEX_FILE, commit):
        names = _list_files(repository, commit)
        raise CheckpointError(_no_weights(f"{repository} at {commit}", names))
    for name in sorted(set(_read_index(folder / INDEX_FILE).values())):
        _download(repository, name, commit)
    return _local_files(folder, revision=commit)


def _download_if_there(repository: str, name: str, commit: str) -> bool:
    try:
        hf_hub_download(repository, name, revision=commit)
    except EntryNotFoundError:  # also when offline and not in the cache
        return False
    return True


def _list_files(repository: str, commit: str) -> list[str]:
    try:
        return sorted(HfApi().list_repo_files(repository, revision=commit))
    except OSError as error:
        raise CheckpointError(
            f"{repository} at {commit}: {WEIGHTS_FILE} and {INDEX_FILE} are not in the local cache "
            f"and the repository cannot be reached ({type(error).__name__}: {error}). Download the "
            "checkpoint where there is a network, or give its folder."
        ) from error


def _download(repository: str, name: str, revision: str | None) -> Path:
    at = f"{repository} at {revision or 'its default branch'}"
    try:
        return Path(hf_hub_download(repository, name, revision=revision))
    except GatedRepoError as error:
        advice = "Access must be granted: accept its terms and set HF_TOKEN."
        raise CheckpointError(f"{at} is gated. {advice}") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{repository!r} must be a folder or a repository that can be read, found neither. "
            "Check the spelling; a private repository needs HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"revision must be a branch, tag or commit of {repository}, found {revision!r}."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{at} must be reachable or in the local cache; {name} is neither, and there is no "
            f"folder of that name. Check the network and HF_HOME. ({error})"
        ) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"{at} must hold {name}, found no such file.") from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise CheckpointError(f"{at} could not be read: {error}.") from error
