"""Makes tests/data/golden: patches of transformers' Siglip2ImageProcessor, as digests and arrays.

Needs an environment with torchvision, and a CPU where torch has its uint8 resize kernel:

    python tests/parity/make_golden_patches.py

Made with transformers 5.24.0, torch 2.14.1, torchvision 0.29.1 and Pillow 13.0.0.
"""

import json

import numpy as np
import torch
from golden_images import BUDGETS, FULL, GOLDEN, digest, images
from PIL import Image
from transformers.models.siglip2.image_processing_siglip2 import Siglip2ImageProcessor


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        raise SystemExit(f"torch resizes in float on this CPU ({capability}): not the reference")
    entries, arrays = {}, {}
    for name, image in images():
        entry = {"size": [image.height, image.width], "rgb": digest(np.asarray(image))}
        for budget in BUDGETS:
            patches, grid = _reference(image, budget)
            entry[str(budget)] = {"grid": grid, "sha256": digest(patches)}
            if budget == BUDGETS[0] and name in FULL:
                arrays[name] = patches
        entries[name] = entry
    GOLDEN.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(e)}" for name, e in entries.items())
    (GOLDEN / "patches.json").write_text(f"{{\n{lines}\n}}\n")
    np.savez_compressed(GOLDEN / "patches.npz", **arrays)
    print(f"{len(entries)} images, {len(arrays)} full arrays in {GOLDEN}")


def _reference(image: Image.Image, budget: int) -> tuple[np.ndarray, list[int]]:
    """Bytes [h * w, 768] and the grid; the processor's floats name each byte exactly."""
    batch = Siglip2ImageProcessor(max_num_patches=budget)([image], return_tensors="pt")
    h, w = batch["spatial_shapes"][0].tolist()
    floats = batch["pixel_values"][0, : h * w]
    patches = (floats * 127.5 + 127.5).round().to(torch.uint8)
    if not torch.equal((patches.float() - 127.5) / 127.5, floats):
        raise SystemExit("the processor's values are not (byte - 127.5) / 127.5 any more")
    return patches.numpy(), [h, w]


if __name__ == "__main__":
    main()
