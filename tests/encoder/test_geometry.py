import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder.geometry import Geometry
from encoder.grid import target_grid

sides = st.integers(1, 5000)


@given(height=sides, width=sides, budget=st.integers(1, 1024))
def test_naflex_is_the_target_grid_in_whole_patches(height, width, budget):
    geometry = Geometry(patch_size=14, max_num_patches=budget)
    h, w = target_grid(height, width, patch_size=14, max_num_patches=budget)
    assert geometry.grid(height, width) == (h, w)
    assert geometry.resized(height, width) == (14 * h, 14 * w)
    assert geometry.grids(np.array([[height, width]])).tolist() == [[h, w]]


@given(height=sides, width=sides)
def test_a_square_takes_every_image_to_one_size_and_drops_what_fills_no_patch(height, width):
    geometry = Geometry(patch_size=14, max_num_patches=27**2, square=384, resample="bicubic")
    assert geometry.grid(height, width) == (27, 27)
    assert geometry.resized(height, width) == (384, 384)  # 378 would be another resize
    assert geometry.grids(np.array([[height, width]])).tolist() == [[27, 27]]


@pytest.mark.parametrize("square", [None, 224])
def test_no_sizes_give_no_grids(square):
    geometry = Geometry(patch_size=16, max_num_patches=196, square=square)
    grids = geometry.grids(np.zeros((0, 2), np.int64))
    assert (grids.shape, grids.dtype) == ((0, 2), np.int64)


def test_a_square_that_holds_another_number_of_patches_is_refused():
    with pytest.raises(ValueError, match="that of 384 px at patch size 14, found 256"):
        Geometry(patch_size=14, max_num_patches=256, square=384)
