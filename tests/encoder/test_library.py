"""The examples of docs/library.md, run without the pipeline, Ray and storage."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from encoder.seeded import write_seeded_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.S)
ALONE = """
import importlib.abc, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {"ray", "pydantic", "obstore", "pyarrow", "pipeline"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    write_seeded_checkpoint(
        folder / "checkpoint", hidden_size=768, num_attention_heads=12, num_hidden_layers=2
    )
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    return folder


def run(code, folder) -> str:
    command = [sys.executable, "-c", ALONE + code]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_ten_line_example(folder):
    statements = [
        line for line in EXAMPLES[0].splitlines() if not line.startswith(("import", "from"))
    ]
    assert sum(bool(line) and line[0] not in " )" for line in statements) <= 10
    show = "print(vectors.dtype, vectors.shape, np.linalg.norm(vectors, axis=1).round(5))"
    assert run(EXAMPLES[0] + show, folder) == "float32 (2, 768) [1. 1.]"


def test_patches_of_an_image(folder):
    assert run(EXAMPLES[1] + "print(rows.dtype, rows.shape, (h, w))", folder) == (
        "uint8 (252, 768) (14, 18)"
    )


@pytest.mark.slow
def test_outputs_and_submits(folder):
    show = "found = tokens_of(pack); print(found.dtype, found.shape)"
    assert run(EXAMPLES[0] + EXAMPLES[2] + show, folder) == "float16 (508, 768)"
    show = "print([np.array_equal(v, vectors) for v in encode_all([pack] * 4)])"
    assert run(EXAMPLES[0] + EXAMPLES[3] + show, folder) == "[True, True, True, True]"


def test_every_example_is_run():
    assert len(EXAMPLES) == 4
