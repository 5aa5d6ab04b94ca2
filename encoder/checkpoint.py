"""What a checkpoint holds, checked strictly, without loading it: sizes, tensors, digest.

No torch: the driver describes the checkpoint on machines that have neither a GPU nor a reason to
spend seconds and memory on that import.
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from encoder.config import CheckpointError, EncoderConfig, read_config
from encoder.source import CONFIG_FILE, CheckpointFiles, find_checkpoint

__all__ = ["Checkpoint", "StoredTensor", "describe_checkpoint", "tensor_shapes"]

_PREFIX = "vision_model."  # full Siglip2Model checkpoints, and vision-only ones of transformers 4
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
    tensors: Mapping[str, StoredTensor]  # keyed as transformers' Siglip2VisionModel does
    digest: str  # see describe_checkpoint


def describe_checkpoint(checkpoint: str | Path, *, revision: str | None = None) -> Checkpoint:
    """The checkpoint's sizes, tensors and digest, after strict checks.

    `digest` is the SHA-256, in hex, of all that decides the vectors: the vision tower's tensors in
    order of name (name, dtype, shape, bytes) and the settings that shapes do not show. It does not
    depend on how the tensors are spread over files, on a name prefix or on a text tower beside
    them. Reads the tower once: 372 MB for base, 1.7 GB for so400m at float32.

    Raises CheckpointError; see encoder.source.find_checkpoint for what `checkpoint` can be.
    """
    files = find_checkpoint(checkpoint, revision=revision)
    config = read_config(files.folder / CONFIG_FILE)
    tensors = _vision_tensors(_stored_tensors(files), where=str(files.folder))
    _check_tensors(tensors, config, where=str(files.folder))
    return Checkpoint(
        folder=files.folder,
        revision=files.revision,
        config=config,
        tensors=tensors,
        digest=_digest(tensors, config),
    )


def tensor_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor name of transformers' Siglip2VisionModel with its shape."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes = {
        **_linear("embeddings.patch_embedding", config.patch_values, width),
        "embeddings.position_embedding.weight": (config.num_patches, width),
    }
    for i in range(config.num_hidden_layers):
        layer = f"encoder.layers.{i}"
        shapes |= _norm(f"{layer}.layer_norm1", width) | _norm(f"{layer}.layer_norm2", width)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{layer}.self_attn.{part}", width, width)
        shapes |= _mlp(f"{layer}.mlp", width, inner)
    return {
        **shapes,
        **_norm("post_layernorm", width),
        "head.probe": (1, 1, width),
        "head.attention.in_proj_weight": (3 * width, width),
        "head.attention.in_proj_bias": (3 * width,),
        **_linear("head.attention.out_proj", width, width),
        **_norm("head.layernorm", width),
        **_mlp("head.mlp", width, inner),
    }


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _mlp(name: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    return _linear(f"{name}.fc1", width, inner) | _linear(f"{name}.fc2", inner, width)


def _stored_tensors(files: CheckpointFiles) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for file in files.weight_files:
        tensors = _read_header(file)
        if files.index is not None:
            indexed = {name for name, shard in files.index.items() if shard == file.name}
            if different := indexed ^ tensors.keys():
                raise CheckpointError(
                    f"{file} must hold exactly the tensors that the index lists for it, found "
                    f"{_some(different)} in only one of the two. Download the checkpoint again."
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


def _vision_tensors(stored: Mapping[str, StoredTensor], *, where: str) -> dict[str, StoredTensor]:
    if not any(name.startswith(_PREFIX) for name in stored):
        return dict(stored)
    rest = [name for name in stored if not name.startswith((_PREFIX, *_OTHER_TOWER))]
    if rest:
        raise CheckpointError(
            f"Every tensor in {where} must be of the vision tower ({_PREFIX}*) or of its text "
            f"tower, found also {_some(rest)}."
        )
    return {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in stored.items()
        if name.startswith(_PREFIX)
    }


def _check_tensors(
    tensors: Mapping[str, StoredTensor], config: EncoderConfig, *, where: str
) -> None:
    patch = tensors.get("embeddings.patch_embedding.weight")
    if patch is not None and len(patch.shape) == 4:
        raise CheckpointError(
            f"The patch embedding must be linear, as in NaFlex checkpoints, found a convolution "
            f"{patch.shape} in {where}: a fixed-resolution SigLIP checkpoint. Those are not "
            "supported; use its NaFlex sibling, such as google/siglip2-base-patch16-naflex."
        )
    shapes = tensor_shapes(config)
    missing, foreign = shapes.keys() - tensors.keys(), tensors.keys() - shapes.keys()
    if missing or foreign:
        raise CheckpointError(
            f"{where} must hold exactly the {len(shapes)} tensors of a SigLIP2 vision tower with "
            f"{config.num_hidden_layers} layers; missing: {_some(missing)}; "
            f"not expected: {_some(foreign)}."
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


def _digest(tensors: Mapping[str, StoredTensor], config: EncoderConfig) -> str:
    digest = hashlib.sha256(
        f"heads={config.num_attention_heads} eps={float(config.layer_norm_eps)!r}\n".encode()
    )
    maps = {file: _map(file) for file in {tensor.file for tensor in tensors.values()}}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(maps[tensor.file][tensor.begin : tensor.end])
    return digest.hexdigest()


def _map(file: Path) -> memoryview:
    with file.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _some(names: Iterable[str], count: int = 4) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - count} more" if len(ordered) > count else ""
    return ", ".join(ordered[:count]) + more if ordered else "none"
