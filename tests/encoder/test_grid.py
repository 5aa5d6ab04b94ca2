"""Target grids, against the function of the installed transformers, run from its source."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from encoder.grid import target_grid, target_grids

sides = st.integers(1, 70_000)
budgets = st.integers(1, 4096)
patch_sizes = st.sampled_from([14, 16, 32])


@cache
def reference():
    """The function alone: its module imports torchvision, which need not be installed."""
    package = Path(find_spec("transformers").origin).parent
    source = (package / "models/siglip2/image_processing_siglip2.py").read_text()
    name = "get_image_size_for_max_num_patches"
    (function,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    scope = {}
    exec(compile(ast.Module([function], type_ignores=[]), name, "exec"), scope)
    return scope[name]


def reference_grid(height, width, patch_size, max_num_patches):
    pixels = reference()(height, width, patch_size, max_num_patches)
    assert all(side % patch_size == 0 for side in pixels)
    return tuple(side // patch_size for side in pixels)


@example(height=1, width=1, patch_size=16, budget=1)
@example(height=70_000, width=1, patch_size=14, budget=4096)
# Two where the width at which the search stops decides, one step later or earlier
@example(height=5712, width=39_387, patch_size=32, budget=2570)
@example(height=13_523, width=55_002, patch_size=32, budget=972)
@example(height=3, width=3, patch_size=16, budget=256)
@given(height=sides, width=sides, patch_size=patch_sizes, budget=budgets)
def test_equals_transformers(height, width, patch_size, budget):
    expected = reference_grid(height, width, patch_size, budget)
    rule = {"patch_size": patch_size, "max_num_patches": budget}
    assert target_grid(height, width, **rule) == expected
    many = target_grids(np.array([[height, width], [width, height]]), **rule)
    assert many.dtype == np.int64
    assert many.tolist() == [
        list(expected),
        list(reference_grid(width, height, patch_size, budget)),
    ]


@given(height=sides, width=sides, patch_size=patch_sizes, budget=budgets)
def test_a_grid_fits_its_budget_and_lies_as_its_image(height, width, patch_size, budget):
    h, w = target_grid(height, width, patch_size=patch_size, max_num_patches=budget)
    assert 1 <= h * w <= budget
    assert (height - width) * (h - w) >= 0


@given(height=sides, width=sides, patch_size=patch_sizes, budget=budgets)
def test_the_patches_of_a_grid_as_budget_give_the_same_grid(height, width, patch_size, budget):
    """The diagnosis of packs leans on it: lengths stand in for an unknown max_num_patches."""
    h, w = target_grid(height, width, patch_size=patch_size, max_num_patches=budget)
    assert target_grid(height, width, patch_size=patch_size, max_num_patches=h * w) == (h, w)


@pytest.mark.parametrize(
    ("size", "budget", "grid"),
    [
        ((480, 640), 256, (14, 18)),
        ((1080, 1920), 256, (12, 21)),
        ((1080, 1920), 1024, (24, 42)),
        ((1, 1000), 256, (1, 256)),
        ((1, 1), 256, (7, 7)),  # the scale ends at 100
        ((5000, 5000), 1, (1, 1)),
    ],
)
def test_known_grids(size, budget, grid):
    assert target_grid(*size, patch_size=16, max_num_patches=budget) == grid


def test_no_sizes_give_no_grids():
    grids = target_grids(np.zeros((0, 2), np.int64), patch_size=16, max_num_patches=256)
    assert grids.shape == (0, 2)
    assert grids.dtype == np.int64
