"""Photos as packs for the encoder's benchmarks. Needs encoder/, numpy and Pillow."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from encoder.batch import PackedBatch
from encoder.geometry import Geometry

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
MODELS = {
    name: dict(
        zip(
            ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            sizes,
            strict=True,
        )
    )
    for name, sizes in {
        "tiny": (64, 256, 2, 1),
        "small": (384, 1536, 6, 6),
        "base": (768, 3072, 12, 12),
        "so400m": (1152, 4304, 27, 16),
    }.items()
}
MIXED = (64, 128, 256, 576, 1024)  # max_num_patches, drawn evenly for each image
PATCH_SIZE = 16


def photos(folder: Path, count: int) -> Iterator[Image.Image]:
    """`count` RGB images: the folder's photos in order, and after them crops of the same photos."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    for index in range(count):
        image = ImageOps.exif_transpose(Image.open(paths[index % len(paths)])).convert("RGB")
        if index >= len(paths):
            image = _crop(image, seed=index)
        image.thumbnail((1024, 1024))  # more pixels than any budget needs
        yield image


def budgets(workload: str, count: int) -> list[int]:
    """max_num_patches of each image: that of the workload's name, or mixed."""
    if workload == "mixed":
        return np.random.default_rng(0).choice(MIXED, count).tolist()
    return [int(workload)] * count


def make_pack(images: Sequence[Image.Image], max_num_patches: Sequence[int]) -> PackedBatch:
    """The images in their order, each resized to its own number of patches."""
    cut = [_patches(image, n) for image, n in zip(images, max_num_patches, strict=True)]
    return PackedBatch(
        pixel_values=np.concatenate([rows for rows, _ in cut]),
        spatial_shapes=np.array([grid for _, grid in cut], dtype=np.int64),
        cu_seqlens=np.cumsum([0, *(len(rows) for rows, _ in cut)], dtype=np.int32),
        source_sizes=np.array([(i.height, i.width) for i in images], dtype=np.int64),
        ids=tuple(range(len(images))),
    )


def save_pack(path: Path, pack: PackedBatch) -> None:
    np.savez(
        path,
        pixel_values=pack.pixel_values,
        spatial_shapes=pack.spatial_shapes,
        cu_seqlens=pack.cu_seqlens,
        source_sizes=pack.source_sizes,
    )


def load_pack(path: Path) -> PackedBatch:
    with np.load(path) as arrays:
        return PackedBatch(**arrays, ids=tuple(range(len(arrays["spatial_shapes"]))))


def _crop(image: Image.Image, *, seed: int) -> Image.Image:
    """A part of 50 to 100 % of each side: other aspect ratios than the whole has."""
    rng = np.random.default_rng(seed)
    width, height = (max(1, int(side * rng.uniform(0.5, 1))) for side in image.size)
    left, top = (
        int(rng.uniform(0, full - part))
        for full, part in zip(image.size, (width, height), strict=True)
    )
    return image.crop((left, top, left + width, top + height))


def _patches(image: Image.Image, max_num_patches: int) -> tuple[np.ndarray, tuple[int, int]]:
    geometry = Geometry(patch_size=PATCH_SIZE, max_num_patches=max_num_patches)
    height, width = geometry.resized(image.height, image.width)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    h, w = height // PATCH_SIZE, width // PATCH_SIZE
    blocks = pixels.reshape(h, PATCH_SIZE, w, PATCH_SIZE * 3).transpose(0, 2, 1, 3)
    return blocks.reshape(h * w, -1), (h, w)
