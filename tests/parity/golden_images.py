"""The images of the golden patches: shipped photos and seeded noise. Needs numpy and Pillow."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
BUDGETS = (64, 256, 576, 1024)
SQUARES = ((224, 16), (100, 14))  # px, patch size; 2 px of the second fill no patch
RESAMPLES = {2: "bilinear", 3: "bicubic"}  # by the number in preprocessor_config.json
FULL = ("noise-1x1", "noise-5x7", "smooth-33x900", "gray-40x30", "violet.jpg")

# Alpha, orientation and 16 bits are our own colour rules: the reference has none to compare with.
_NOT_PLAIN = {"horse-alpha.png", "bars-1bit-flipped.tif", "sand-64px-16bit.png"}
_SIZES = [  # height, width px
    *[(1, 1), (1, 2), (2, 1), (1, 300), (300, 1), (1, 2000), (2000, 1), (3, 3), (5, 7), (3, 640)],
    *[(640, 3), (15, 15), (16, 16), (17, 31), (8, 640), (33, 900), (900, 33), (128, 128)],
    *[(255, 257), (480, 640), (1000, 999), (1080, 1920), (2403, 1201)],
]


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def images() -> Iterator[tuple[str, Image.Image]]:
    """(name, RGB image) of each golden image."""
    for path in sorted(PHOTOS.iterdir()):
        if path.suffix != ".md" and path.name not in _NOT_PLAIN:
            yield path.name, Image.open(path).convert("RGB")
    random = np.random.RandomState(20261202)  # its stream is frozen; default_rng's may change
    for height, width in _SIZES:
        pixels = random.randint(0, 256, (height, width, 3), dtype=np.uint8)
        yield f"noise-{height}x{width}", Image.fromarray(pixels)
    for height, width in [(33, 900), (700, 500), (64, 48)]:
        yield f"smooth-{height}x{width}", Image.fromarray(_smooth(height, width))
    gray = random.randint(0, 256, (40, 30), dtype=np.uint8)
    yield "gray-40x30", Image.fromarray(gray).convert("RGB")


def _smooth(height: int, width: int) -> np.ndarray:
    """A different gradient in each channel, so that swapped axes or channels show."""
    y, x = np.mgrid[:height, :width]
    channels = (x * 255 // width, y * 255 // height, (x + 2 * y) % 256)
    return np.stack(channels, axis=-1).astype(np.uint8)
