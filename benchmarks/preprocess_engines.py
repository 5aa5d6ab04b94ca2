"""Image bytes to patches: embedmill's ways and what people use today, each a function of bytes.

Engines whose library is not installed are left out, with the reason.
"""

import io
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.preprocess import prepare, resolve_kernel
from pipeline.records import RawSample, SampleId

GEOMETRY = Geometry(patch_size=16, max_num_patches=256)

Engine = Callable[[bytes], Any]


def engines() -> tuple[dict[str, Engine], dict[str, str]]:
    """(engines by name, reasons by the name of a missing one)."""
    found: dict[str, Engine] = {}
    missing: dict[str, str] = {}
    for name, make in _MAKERS.items():
        try:
            found[name] = make()
        except (ImportError, RuntimeError) as error:
            missing[name] = str(error).strip().splitlines()[0]
    return found, missing


def _embedmill(decode: str) -> Engine:
    config, kernel = PreprocessConfig(decode=decode), resolve_kernel("auto")
    id_ = SampleId(shard="", key="")

    def run(data: bytes) -> Any:
        sample = RawSample(id=id_, index=0, member="", image=data)
        return prepare(sample, config, geometry=GEOMETRY, kernel=kernel).pixel_values

    return run


def _rgb(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _transformers(name: str) -> Engine:
    import transformers

    if name == "Siglip2ImageProcessor":
        import torchvision  # noqa: F401  without it transformers quietly takes its Pillow processor

    processor = getattr(transformers, name)(patch_size=16, max_num_patches=256)
    return lambda data: processor(images=_rgb(data), return_tensors="pt")["pixel_values"]


def _timm() -> Engine:
    from timm.data.transforms_factory import transforms_imagenet_eval

    half = (0.5, 0.5, 0.5)
    transform = transforms_imagenet_eval(
        naflex=True, patch_size=16, max_seq_len=256, patchify=True, mean=half, std=half
    )
    return lambda data: transform(_rgb(data))["patches"]


_MAKERS: dict[str, Callable[[], Engine]] = {
    "embedmill exact": lambda: _embedmill("exact"),
    "embedmill reduced": lambda: _embedmill("reduced"),
    "transformers fast": lambda: _transformers("Siglip2ImageProcessor"),
    "transformers PIL": lambda: _transformers("Siglip2ImageProcessorPil"),
    "timm NaFlex": _timm,
    "Pillow decoding alone": lambda: _rgb,
}


def one_thread() -> None:
    """None; torch, torchvision and all that they call compute in one thread from here on."""
    torch.set_num_threads(1)
