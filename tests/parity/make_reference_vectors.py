"""Writes tests/data/reference_vectors.npz: what transformers gives for the corpus photos.

Run in an environment with torchvision (transformers' default Siglip2 processor needs it), in the
repository's root:

    PYTHONPATH=. python tests/parity/make_reference_vectors.py <folder of the corpus photos>

Patches come from transformers' own default processor on images converted by transformers' own
`convert_to_rgb` first (alpha over white); vectors from Siglip2VisionModel in float32 on padded
batches, with the weights of the seeded checkpoint.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import Siglip2ImageProcessor, Siglip2VisionModel
from transformers.image_transforms import convert_to_rgb

from encoder.seeded import write_seeded_checkpoint

BATCH = 16
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
TARGET = Path(__file__).parent.parent / "data" / "reference_vectors.npz"


def main(folder: Path) -> None:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    with tempfile.TemporaryDirectory() as checkpoint:
        write_seeded_checkpoint(checkpoint)
        processor = Siglip2ImageProcessor()
        model = Siglip2VisionModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
        vectors = [
            embed(paths[i : i + BATCH], processor, model) for i in range(0, len(paths), BATCH)
        ]
    np.savez_compressed(
        TARGET,
        names=np.array([path.name for path in paths]),
        vectors=np.concatenate(vectors),
        versions=np.array(f"transformers {transformers.__version__}, torch {torch.__version__}"),
    )


@torch.inference_mode()
def embed(paths: list[Path], processor, model) -> np.ndarray:
    images = [convert_to_rgb(Image.open(path)) for path in paths]
    pooled = model(**processor(images=images, return_tensors="pt")).pooler_output
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
