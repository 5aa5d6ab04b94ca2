"""Prints the parity tables of docs/numerics.md: the encoder against transformers on a CPU.

    PYTHONPATH=.:tests/parity python tests/parity/make_parity_table.py [--quick]

Random weights, saved by transformers; random bytes as pixels. A row needs up to 12 GB and minutes.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from towers import (
    FEW,
    MIXED,
    RAW,
    SO400M,
    TINY,
    TOKENS,
    differences,
    encode,
    randomise,
    reference,
    vision_model,
    worst_image,
)
from transformers import SiglipVisionConfig, SiglipVisionModel

from encoder.batch import PackedBatch
from encoder.infer import load_encoder
from encoder.output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    fixed: bool = False
    grids: list[tuple[int, int]] = field(default_factory=lambda: FEW)
    backends: tuple[str, ...] = ("sdpa", "reference")

    def model(self) -> Any:
        if not self.fixed:
            return vision_model(**self.sizes)
        model = SiglipVisionModel(SiglipVisionConfig(**self.sizes)).eval()
        randomise(model)
        return model


CASES = [
    Case(name="NaFlex, tiny", sizes=TINY, grids=MIXED),
    Case(name="NaFlex, base"),
    Case(name="NaFlex, so400m", sizes=SO400M, grids=FEW[:4]),
    Case(name="224 px, base", fixed=True, grids=[(14, 14)] * 3),
    Case(
        name="384 px at patch 14, base, 3 layers",
        sizes={"image_size": 384, "patch_size": 14, "num_hidden_layers": 3},
        fixed=True,
        grids=[(27, 27)] * 2,
    ),
]


def main() -> None:
    cases = CASES[:1] if "--quick" in sys.argv else CASES
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}\n")
    rows = [row for case in cases for row in _rows(case)]
    print("float32, largest of max\\|difference\\| / max\\|value\\| of an image:\n")
    print(
        "| configuration | backend | pooled | last hidden state | inner layers | alone or packed |"
    )
    print("|---|---|---|---|---|---|")
    print("\n".join(exact for exact, _ in rows))
    print("\nbfloat16, root mean square of the error against transformers in float32:\n")
    print("| configuration | backend | pooled | transformers' | tokens | transformers' | alone |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rounded for _, rounded in rows))


def _rows(case: Case) -> Iterator[tuple[str, str]]:
    model = case.model()
    patch_size = case.sizes.get("patch_size", 16)
    pack = _pack(case.grids, patch_size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        exact = reference(model, pack)
        exact_rows = {}
        for backend in case.backends:
            found = differences(model, folder, pack, attention=backend)
            inner = max(value for layer, value in found.items() if isinstance(layer, int))
            alone = _alone(folder, pack, attention=backend)
            cells = (found["pooled"], found["last"], inner, alone)
            exact_rows[backend] = _line(case.name, backend, *cells)
        theirs = reference(model.to(torch.bfloat16), pack)
        del model
        for backend in case.backends:
            cells = []
            for key, output in (("pooled", RAW), ("last", TOKENS)):
                ours = encode(folder, pack, output, dtype="bfloat16", attention=backend)
                cells += [_rms(ours - exact[key]), _rms(theirs[key] - exact[key])]
            alone = _alone(folder, pack, attention=backend, dtype="bfloat16")
            yield exact_rows[backend], _line(case.name, backend, *cells, alone)


def _alone(folder: Path, pack: PackedBatch, **options: Any) -> float:
    """The largest difference between an image alone and the same image in the pack."""
    dtype = options.pop("dtype", "float32")
    encoder = load_encoder(folder, device="cpu", dtype=dtype, output=Output(), **options)
    alone = np.concatenate([encoder(pack.part(i, i + 1)) for i in range(pack.num_images)])
    return worst_image(alone, encoder(pack))


def _pack(grids: list[tuple[int, int]], patch_size: int) -> PackedBatch:
    shapes = np.array(grids, dtype=np.int64)
    lengths = shapes.prod(axis=1)
    rng = np.random.default_rng(0)
    return PackedBatch(
        pixel_values=rng.integers(0, 256, (lengths.sum(), patch_size**2 * 3), dtype=np.uint8),
        spatial_shapes=shapes,
        cu_seqlens=np.cumsum([0, *lengths], dtype=np.int32),
        source_sizes=shapes * patch_size,
        ids=tuple(range(len(grids))),
    )


def _line(*cells: str | float) -> str:
    texts = [cell if isinstance(cell, str) else f"{cell:.1e}" for cell in cells]
    return f"| {' | '.join(texts)} |"


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


if __name__ == "__main__":
    main()
