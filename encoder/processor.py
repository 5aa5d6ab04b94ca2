"""The pixels that a tower reads, as the checkpoint's preprocessor_config.json says. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoder.config import CheckpointError, EncoderConfig, read_object
from encoder.geometry import Geometry, Resample

__all__ = ["PROCESSOR_FILES", "Processor", "read_processor"]

# transformers 5 nests the image processor of a model with several into processor_config.json.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_RESAMPLES: Mapping[Any, Resample] = {2: "bilinear", 3: "bicubic"}  # as Pillow numbers them
_NAFLEX_TYPES = tuple(f"Siglip2ImageProcessor{end}" for end in ("", "Fast", "Pil"))
_HALF = (0.5, 0.5, 0.5)
Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """Pixels in, as the checkpoint was trained; the values of its file, checked.

    A byte x of channel c becomes (x * rescale - mean[c]) / std[c].
    """

    where: str  # the file, for messages
    kind: str | None  # image_processor_type; None: there is no file
    resample: Resample | None  # None: not said, and the tower's kind does not imply it
    mean: Triple
    std: Triple
    rescale: float
    patch_size: int | None  # NaFlex only
    max_num_patches: int  # NaFlex only: what transformers would use
    square: int | None  # px, fixed resolution only


def read_processor(folder: Path, config: EncoderConfig) -> Processor:
    """What the folder's processor file says; the defaults of transformers where it is silent.

    Raises CheckpointError where it asks for what is not done here: no resize, no rescaling, a crop,
    a filter that is neither bilinear nor bicubic, an image size that is not the tower's.
    """
    path, raw = _read(folder)
    if raw is None:
        known = config.image_size is None
        return Processor(
            where=f"{folder} without {PROCESSOR_FILES[0]}",
            kind=None,
            resample="bilinear" if known else None,
            mean=_HALF,
            std=_HALF,
            rescale=1 / 255,
            patch_size=None,
            max_num_patches=256,
            square=None,
        )
    for step, wanted in (("do_resize", True), ("do_rescale", True), ("do_center_crop", False)):
        if raw.get(step) not in (None, wanted):
            raise CheckpointError(f"{path}: {step} must be {wanted}, found {raw[step]!r}.")
    normalize = raw.get("do_normalize") is not False
    processor = Processor(
        where=str(path),
        kind=raw.get("image_processor_type"),
        resample=_resample(raw, config, path),
        mean=_triple(raw, "image_mean", path) if normalize else (0.0, 0.0, 0.0),
        std=_triple(raw, "image_std", path) if normalize else (1.0, 1.0, 1.0),
        rescale=_number(raw, "rescale_factor", 1 / 255, path),
        patch_size=_whole(raw, "patch_size", path),
        max_num_patches=_whole(raw, "max_num_patches", path) or 256,
        square=_square(raw, config, path),
    )
    _check_sizes(processor, config)
    return processor


def choose_geometry(
    processor: Processor, config: EncoderConfig, max_num_patches: int | None
) -> Geometry:
    """The geometry of a run; see `encoder.checkpoint.Checkpoint.geometry`."""
    if config.image_size is None:
        return _naflex(processor, config, max_num_patches)
    patches = (config.image_size // config.patch_size) ** 2
    if max_num_patches not in (None, patches):
        raise CheckpointError(
            f"max_num_patches is {max_num_patches}, but {processor.where} says that images are "
            f"resized to {config.image_size} x {config.image_size} px, {patches} patches of "
            f"{config.patch_size} px, whatever their size: a fixed-resolution checkpoint. Leave "
            "max_num_patches out, or use a NaFlex checkpoint."
        )
    if processor.resample is None:
        raise CheckpointError(
            f"A fixed-resolution checkpoint must have {PROCESSOR_FILES[0]}: SigLIP resizes with "
            f"another filter than SigLIP2. Found none ({processor.where}). Copy it from where the "
            "checkpoint came from."
        )
    return Geometry(
        patch_size=config.patch_size,
        max_num_patches=patches,
        square=config.image_size,
        resample=processor.resample,
    )


def _naflex(processor: Processor, config: EncoderConfig, max_num_patches: int | None) -> Geometry:
    if processor.kind not in (None, *_NAFLEX_TYPES) and max_num_patches is None:
        raise CheckpointError(
            f"{processor.where}: image_processor_type must be one of {_NAFLEX_TYPES}, found "
            f"{processor.kind!r}, whose tiles and sizes are not made here. Give max_num_patches to "
            "resize whole images by SigLIP2's NaFlex rule, which the tower reads too."
        )
    return Geometry(
        patch_size=config.patch_size,
        max_num_patches=max_num_patches or processor.max_num_patches,
        resample=processor.resample or "bilinear",
    )


def _read(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    for name in PROCESSOR_FILES:
        path = folder / name
        if path.is_file():
            raw = read_object(path)
            nested = raw.get("image_processor")
            if isinstance(nested, dict):
                return path, nested
            if name == PROCESSOR_FILES[0]:
                return path, raw
    return folder, None


def _resample(raw: Mapping[str, Any], config: EncoderConfig, path: Path) -> Resample:
    code = raw.get("resample")
    if code is None:
        code = 2 if config.image_size is None else 3  # the defaults of the two processors
    if code not in _RESAMPLES:
        raise CheckpointError(
            f"{path}: resample must be 2 (bilinear) or 3 (bicubic), found {code!r}."
        )
    return _RESAMPLES[code]


def _square(raw: Mapping[str, Any], config: EncoderConfig, path: Path) -> int | None:
    if config.image_size is None:
        return None
    size = raw.get("size", {"height": 224, "width": 224})
    match size:
        case int():
            return size
        case {"height": int(height), "width": width} if height == width:
            return height
    raise CheckpointError(
        f"{path}: size must be a square, as fixed-resolution towers read, found {size!r}."
    )


def _check_sizes(processor: Processor, config: EncoderConfig) -> None:
    if processor.square not in (None, config.image_size):
        raise CheckpointError(
            f"{processor.where} resizes images to {processor.square} px, config.json has "
            f"image_size {config.image_size}: they must be equal. The two files are of different "
            "checkpoints."
        )
    naflex = processor.kind in _NAFLEX_TYPES and config.image_size is None
    if naflex and processor.patch_size not in (None, config.patch_size):
        raise CheckpointError(
            f"{processor.where} cuts patches of {processor.patch_size} px, config.json has "
            f"patch_size {config.patch_size}: they must be equal. The two files are of different "
            "checkpoints."
        )


def _triple(raw: Mapping[str, Any], name: str, path: Path) -> Triple:
    values = raw.get(name) or _HALF
    if isinstance(values, int | float):
        values = (values,) * 3
    numbers = tuple(float(v) for v in values if isinstance(v, int | float))
    if len(numbers) != 3 or (name == "image_std" and 0.0 in numbers):
        raise CheckpointError(f"{path}: {name} must be three numbers, found {values!r}.")
    return numbers[0], numbers[1], numbers[2]


def _number(raw: Mapping[str, Any], name: str, default: float, path: Path) -> float:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"{path}: {name} must be a positive number, found {value!r}.")
    return float(value)


def _whole(raw: Mapping[str, Any], name: str, path: Path) -> int | None:
    value = raw.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(f"{path}: {name} must be a positive whole number, found {value!r}.")
    return value
