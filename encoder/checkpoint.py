"""What a checkpoint holds, checked strictly, without loading it: sizes, tensors, digest.

No torch: the driver describes the checkpoint on machines that have neither a GPU nor a reason to
spend seconds and memory on that import.
"""

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from encoder.config import CheckpointError, EncoderConfig, read_config
from encoder.geometry import Geometry
from encoder.output import Output, Readout, resolve_output
from encoder.processor import Processor, choose_geometry, read_processor
from encoder.source import CONFIG_FILE, CheckpointFiles, find_checkpoint
from encoder.tensors import TowerParts, find_prefix, some, tensor_shapes, tower_parts

__all__ = ["Checkpoint", "StoredTensor", "describe_checkpoint"]

_OTHER_TOWER = ("text_model.", "logit_scale", "logit_bias")
_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where one tensor's bytes are."""

    file: Path
    name: str  # as in the file, with its prefix
    dtype: str  # as safetensors spells it
    shape: tuple[int, ...]
    begin: int  # byte offsets in the file
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A vision tower on disk whose tensor names, shapes and dtypes have been checked."""

    folder: Path
    revision: str | None  # commit of the Hugging Face repository, None for a folder
    config: EncoderConfig
    processor: Processor
    parts: TowerParts
    tensors: Mapping[str, StoredTensor]  # keyed as transformers' vision models do
    digest: str  # see describe_checkpoint

    def geometry(self, *, max_num_patches: int | None = None) -> Geometry:
        """How images become patches for this tower.

        `max_num_patches` is for NaFlex: left out, it is what the checkpoint's processor file says.
        Raises CheckpointError where it contradicts a fixed-resolution checkpoint, and where the
        rule of the processor file is one that is not done here.
        """
        return choose_geometry(self.processor, self.config, max_num_patches)

    def readout(self, output: Output) -> Readout:
        """What has to be run for the output; raises CheckpointError where a part is not there."""
        return resolve_output(output, self.config, self.parts, where=str(self.folder))


def describe_checkpoint(
    checkpoint: str | Path, *, revision: str | None = None, prefix: str | None = None
) -> Checkpoint:
    """The checkpoint's sizes, tensors and digest, after strict checks.

    `prefix` is what comes before the tower's tensor names inside a larger model; it is found where
    there is one tower. `digest` is the SHA-256, in hex, of all that decides the vectors: the
    tower's tensors in order of name (name, dtype, shape, bytes) and the settings that shapes do not
    show. It does not depend on how the tensors are spread over files, on the prefix or on what
    lies beside them. Reads the tower once: 372 MB for base, 1.7 GB for so400m at float32.

    Raises CheckpointError; see encoder.source.find_checkpoint for what `checkpoint` can be.
    """
    files = find_checkpoint(checkpoint, revision=revision)
    config = read_config(files.folder / CONFIG_FILE)
    processor = read_processor(files.folder, config)
    where = str(files.folder)
    stored = _stored_tensors(files)
    tensors = _vision_tensors(stored, find_prefix(stored, prefix, where=where), config, where=where)
    parts = tower_parts(tensors, config)
    _check_tensors(tensors, config, parts, where=where)
    return Checkpoint(
        folder=files.folder,
        revision=files.revision,
        config=config,
        processor=processor,
        parts=parts,
        tensors=tensors,
        digest=_digest(tensors, config, processor),
    )


def _stored_tensors(files: CheckpointFiles) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for file in files.weight_files:
        tensors = _read_header(file)
        if files.index is not None:
            indexed = {name for name, shard in files.index.items() if shard == file.name}
            if different := indexed ^ tensors.keys():
                raise CheckpointError(
                    f"{file} must hold exactly the tensors that the index lists for it, found "
                    f"{some(different)} in only one of the two. Download the checkpoint again."
                )
        found |= tensors
    return found


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(file, framework="numpy"):  # checks sizes and offsets
            pass
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} must be a whole safetensors file: {error}{_pointer_hint(file)}."
        ) from error
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    start = 8 + size
    return {
        name: StoredTensor(
            file=file,
            name=name,
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            begin=start + entry["data_offsets"][0],
            end=start + entry["data_offsets"][1],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _pointer_hint(file: Path) -> str:
    with file.open("rb") as stream:
        if stream.read(24).startswith(b"version https://git-lfs"):
            return " (it is a Git LFS pointer: run git lfs pull)"
    return ""


def _vision_tensors(
    stored: Mapping[str, StoredTensor], prefix: str, config: EncoderConfig, *, where: str
) -> dict[str, StoredTensor]:
    """The tensors at the prefix, keyed without it."""
    rest = [name for name in stored if not name.startswith((prefix, *_OTHER_TOWER))]
    if rest and not config.in_larger_model:
        raise CheckpointError(
            f"Every tensor in {where} must be of the vision tower ({prefix}*) or of its text "
            f"tower, found also {some(rest)}."
        )
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }


def _check_tensors(
    tensors: Mapping[str, StoredTensor], config: EncoderConfig, parts: TowerParts, *, where: str
) -> None:
    shapes = tensor_shapes(config, parts)
    missing, foreign = shapes.keys() - tensors.keys(), tensors.keys() - shapes.keys()
    if missing or foreign:
        raise CheckpointError(
            f"{where} must hold exactly the {len(shapes)} tensors of a SigLIP vision tower with "
            f"{parts.blocks} layers; missing: {some(missing)}; not expected: {some(foreign)}."
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{name} must have shape {shape} by {CONFIG_FILE}, found {tensor.shape} in "
                f"{tensor.file}. The weights and {CONFIG_FILE} are of different models."
            )
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(
                f"{name} must be stored as one of {', '.join(_DTYPES)}, found {tensor.dtype} in "
                f"{tensor.file}. Quantised weights are not supported."
            )


def _digest(
    tensors: Mapping[str, StoredTensor], config: EncoderConfig, processor: Processor
) -> str:
    settings = (
        f"heads={config.num_attention_heads} eps={float(config.layer_norm_eps)!r} "
        f"mean={processor.mean} std={processor.std} rescale={processor.rescale!r}\n"
    )
    digest = hashlib.sha256(settings.encode())
    maps = {file: _map(file) for file in {tensor.file for tensor in tensors.values()}}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(maps[tensor.file][tensor.begin : tensor.end])
    return digest.hexdigest()


def _map(file: Path) -> memoryview:
    with file.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
