"""Images that are almost right: each becomes patches or a rejection, in bounded time.

    python -m tests.fuzz.fuzz_images --minutes 10 [--seed 1] [--corpora FOLDER]

Ten minutes over the corpora: 219,000 images, found a JPEG frame at the very end of the data, colour
profiles with a name that is not ASCII, signalling NaNs, and a slow rule for LAB; the first three are tests.
"""

import argparse
import io
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.preprocess import prepare
from pipeline.records import RawSample, SampleId

PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"
LIMIT = 4_000_000
GEOMETRY = Geometry(patch_size=16, max_num_patches=16)
CONFIGS = [
    PreprocessConfig(max_image_pixels=LIMIT),
    PreprocessConfig(
        max_image_pixels=LIMIT,
        truncated_images="accept",
        background="drop",
    ),
    PreprocessConfig(
        max_image_pixels=LIMIT,
        icc="apply",
        background="black",
        decode="reduced",
        exif_orientation=False,
    ),
]
MAX_SEED_BYTES = 60_000
MAX_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpora", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = random.Random(arguments.seed)
    seeds = list(made_seeds()) + list(file_seeds(arguments.corpora))
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        data = mutated(source, source.choice(seeds))
        outcomes[outcome(data, source.choice(CONFIGS))] += 1
    print(f"{sum(outcomes.values()):,} images: {dict(outcomes.most_common())}")


def made_seeds() -> Iterator[bytes]:
    photo = Image.open(PHOTOS / "rolls.jpg").resize((96, 64))
    modes = {
        "JPEG": ["RGB", "L", "CMYK"],
        "PNG": ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"],
        "TIFF": ["RGB", "RGBA", "L", "CMYK", "P", "1", "I;16", "I", "F", "LAB"],
        "WEBP": ["RGB", "RGBA"],
        "AVIF": ["RGB", "RGBA"],
        "JPEG2000": ["RGB", "RGBA", "L", "I;16"],
        "GIF": ["P"],
        "BMP": ["RGB", "P", "1"],
        "PPM": ["RGB", "L", "1", "I", "F"],
        "ICO": ["RGBA"],
        "TGA": ["RGB"],
        "PCX": ["RGB"],
        "SGI": ["RGB"],
    }
    for name, of_this in modes.items():
        for mode in of_this:
            file = io.BytesIO()
            image = photo.convert("L") if mode in ("I;16", "LA") else photo
            if mode == "LAB":
                image = Image.merge("LAB", photo.split())
            image.convert(mode).save(file, name)
            yield file.getvalue()


def file_seeds(corpora: Path | None) -> Iterator[bytes]:
    folders = [PHOTOS, *([corpora / "hard", corpora / "broken"] if corpora else [])]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if 0 < path.stat().st_size < MAX_SEED_BYTES:
                yield path.read_bytes()


def mutated(source: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(source.choice((1, 1, 2, 4, 8, 30))):
        near = min(len(data), 200) if source.random() < 0.5 else len(data)  # headers half the time
        at, kind = source.randrange(near), source.random()
        if kind < 0.4:
            data[at] = source.randrange(256)
        elif kind < 0.6:
            data[at] = source.choice((0, 1, 127, 128, 255))
        elif kind < 0.75:
            del data[at : at + source.randrange(1, 50)]
        elif kind < 0.85:
            data[at:at] = data[at : at + source.randrange(1, 200)]
        elif kind < 0.95:
            data[at : at + 4] = source.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
        else:
            del data[at + 1 :]
        if not data:
            return b""
    return bytes(data)


def outcome(data: bytes, config: PreprocessConfig) -> str:
    """The reason or "patches". Anything else that `prepare` raises ends the run, with the bytes."""
    sample = RawSample(id=SampleId(shard="file:///s.tar", key="k"), index=0, member="m", image=data)
    start, result, detail = time.monotonic(), "patches", ""
    try:
        patched = prepare(sample, config, geometry=GEOMETRY, kernel="pillow")
        assert len(patched.pixel_values) == patched.grid[0] * patched.grid[1]
    except SampleError as error:
        result, detail = error.reason.value, error.detail
    except BaseException:
        Path("fuzz_image_fault").write_bytes(data)
        raise
    assert detail.isprintable(), detail
    assert "object at 0x" not in detail, detail
    seconds = time.monotonic() - start
    assert seconds < MAX_SECONDS, f"{seconds:.1f} s: {data[:64].hex()}"
    return result


if __name__ == "__main__":
    main()
