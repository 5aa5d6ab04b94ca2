"""The grid of patches that an image of a given size becomes: one rule for both halves."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_SCALE_STEP = 1e-5  # the search stops at this width, as transformers' Siglip2ImageProcessor does
_MAX_SCALE = 100.0


def target_grid(
    height: int, width: int, *, patch_size: int, max_num_patches: int
) -> tuple[int, int]:
    """(h, w) in patches that an image of height x width pixels, both >= 1, is resized to.

    The largest scale in [1e-6, 100] at which both sides, rounded up to whole patches, hold at most
    `max_num_patches`; found by the same float64 bisection as transformers 5.24
    `get_image_size_for_max_num_patches`, so ties fall the same way. Small images are scaled up;
    the aspect ratio bends by the rounding.
    """
    return _search(height, width, patch_size, max_num_patches)


def target_grids(
    sizes: NDArray[np.int64], *, patch_size: int, max_num_patches: int
) -> NDArray[np.int64]:
    """[N, 2] grids (h, w) of [N, 2] source sizes (height, width) px; `target_grid` for many."""
    grids = [
        _search(height, width, patch_size, max_num_patches) for height, width in sizes.tolist()
    ]
    return np.array(grids, dtype=np.int64).reshape(-1, 2)


@lru_cache(maxsize=16_384)  # the search takes 24 steps and real images share sizes
def _search(height: int, width: int, patch_size: int, max_num_patches: int) -> tuple[int, int]:
    low, high = _SCALE_STEP / 10, _MAX_SCALE
    while high - low >= _SCALE_STEP:
        scale = (low + high) / 2
        h = math.ceil(height * scale / patch_size)
        w = math.ceil(width * scale / patch_size)
        if h * w <= max_num_patches:
            low = scale
        else:
            high = scale
    return math.ceil(height * low / patch_size), math.ceil(width * low / patch_size)
