"""How an image of any size becomes patches: the rule that a checkpoint was trained with."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from encoder.grid import target_grid, target_grids

__all__ = ["Geometry", "Resample"]

Resample = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes and the resize of a run's patches; `encoder.checkpoint.Checkpoint.geometry` makes it.

    NaFlex keeps the aspect ratio and bounds the number of patches. Fixed-resolution checkpoints
    resize every image to one square and read whole patches from its top left: of 384 px at patch
    size 14 that is 27 x 27 patches, and 6 px on the right and at the bottom are left out.

    Raises ValueError at construction where a square holds another number of patches.
    """

    patch_size: int  # px
    max_num_patches: int  # of one image
    square: int | None = None  # px, the side of the square; None: NaFlex
    resample: Resample = "bilinear"  # antialiased

    def __post_init__(self) -> None:
        if self.square is not None and (self.square // self.patch_size) ** 2 != (
            self.max_num_patches
        ):
            raise ValueError(
                f"max_num_patches must be that of {self.square} px at patch size "
                f"{self.patch_size}, found {self.max_num_patches}."
            )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) in patches of an image of height x width px."""
        if self.square is not None:
            return self.square // self.patch_size, self.square // self.patch_size
        return target_grid(
            height, width, patch_size=self.patch_size, max_num_patches=self.max_num_patches
        )

    def grids(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N, 2] grids of [N, 2] source sizes (height, width) px."""
        if self.square is not None:
            return np.full((len(sizes), 2), self.square // self.patch_size, dtype=np.int64)
        return target_grids(sizes, patch_size=self.patch_size, max_num_patches=self.max_num_patches)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) px that an image is resized to before it is cut into patches."""
        if self.square is not None:
            return self.square, self.square
        h, w = self.grid(height, width)
        return h * self.patch_size, w * self.patch_size
