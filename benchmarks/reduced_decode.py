"""What `decode: reduced` changes: pixels and embeddings of JPEG photos, beside `decode: exact`.

    python benchmarks/reduced_decode.py PHOTOS_FOLDER [--model base] [--patches 256] [--json FILE]

Only photos that reduced decoding changes are compared; the others are counted. The weights are
random, in the shape of siglip2-base; float32. For scale, the cosine between different photos, and
between a photo and itself shifted by one pixel column before it is resized.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from encoder_inputs import MODELS, PATCH_SIZE
from preprocess import is_photo

from encoder.geometry import Geometry
from encoder.infer import Encoder, load_encoder
from encoder.seeded import write_seeded_checkpoint
from pipeline.config import PreprocessConfig
from pipeline.decode import decode
from pipeline.packing import make_pack
from pipeline.preprocess import patchify, prepare, resolve_kernel
from pipeline.records import PatchedImage, RawSample, SampleId
from pipeline.resize import resize

BATCH = 8  # images in a forward pass


def main() -> None:
    options = _options()
    geometry = Geometry(patch_size=PATCH_SIZE, max_num_patches=options.patches)
    photos = [p.read_bytes() for p in sorted(options.photos.iterdir()) if is_photo(p)]
    pairs = [_pair(str(index), data, geometry) for index, data in enumerate(photos)]
    changed = [i for i, (one, other) in enumerate(pairs) if not _equal(one, other)]
    exact, reduced = zip(*(pairs[index] for index in changed), strict=True)
    shifted = [_shifted(photos[index], pairs[index][0], geometry) for index in changed]
    with tempfile.TemporaryDirectory() as folder:
        write_seeded_checkpoint(folder, **MODELS[options.model])
        encoder = load_encoder(folder, device="cpu", dtype="float32")
        vectors = [_encode(encoder, images) for images in (exact, reduced, shifted)]
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "model": MODELS[options.model],
        "patches": options.patches,
        "photos": len(photos),
        "changed": len(changed),
        **_compare(*vectors),
        "levels": _levels(exact, reduced),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def _pair(key: str, data: bytes, geometry: Geometry) -> tuple[PatchedImage, PatchedImage]:
    """A photo as it is decoded exactly, and reduced."""
    sample = RawSample(id=SampleId(shard="", key=key), index=0, member="", image=data)
    kernel = resolve_kernel("auto")
    exact, reduced = (
        prepare(sample, PreprocessConfig(decode=mode), geometry=geometry, kernel=kernel)
        for mode in ("exact", "reduced")
    )
    return exact, reduced


def _equal(one: PatchedImage, other: PatchedImage) -> bool:
    return np.array_equal(one.pixel_values, other.pixel_values)


def _shifted(data: bytes, exact: PatchedImage, geometry: Geometry) -> PatchedImage:
    """The photo with its first column at its end; the grid stays."""
    pixels = np.roll(decode(data, PreprocessConfig()).pixels, -1, axis=1)
    height, width = geometry.resized(*exact.source_size)
    resized = resize(pixels, height, width, resolve_kernel("auto"))
    return PatchedImage(
        id=exact.id,
        index=0,
        pixel_values=patchify(resized, PATCH_SIZE),
        grid=exact.grid,
        source_size=exact.source_size,
    )


def _encode(encoder: Encoder, images: Sequence[PatchedImage]) -> np.ndarray:
    parts = [images[first : first + BATCH] for first in range(0, len(images), BATCH)]
    return np.concatenate([np.asarray(encoder(make_pack(part).batch)) for part in parts])


def _compare(exact: np.ndarray, reduced: np.ndarray, shifted: np.ndarray) -> dict[str, Any]:
    unit, of_reduced, of_shifted = (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for vectors in (exact, reduced, shifted)
    )
    between, nearest = unit @ unit.T, np.argmax(of_reduced @ unit.T, axis=1)
    difference = np.abs(exact - reduced).max(axis=1) / np.abs(exact).max(axis=1)
    return {
        "cosine": _spread((unit * of_reduced).sum(axis=1)),
        "largest_difference": _spread(difference),
        "cosine_shifted": _spread((unit * of_shifted).sum(axis=1)),
        "cosine_of_different_photos": _spread(between[~np.eye(len(unit), dtype=bool)]),
        "nearest_is_itself": int((nearest == np.arange(len(unit))).sum()),
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(values, (0, 0.5, 1))
    return {"lowest": float(low), "median": float(median), "highest": float(high)}


def _levels(exact: Sequence[PatchedImage], reduced: Sequence[PatchedImage]) -> dict[str, float]:
    """Differences of 8-bit values: their mean over all, and the mean of the photo's largest."""
    differences = [
        np.abs(one.pixel_values.astype(int) - other.pixel_values.astype(int))
        for one, other in zip(exact, reduced, strict=True)
    ]
    return {
        "mean": float(np.mean([d.mean() for d in differences])),
        "largest_mean_of_a_photo": float(max(d.mean() for d in differences)),
        "largest": float(max(d.max() for d in differences)),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--patches", type=int, default=256)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
