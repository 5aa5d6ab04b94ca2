"""Learned position grids resized to the grid of each image, in float32, cached per grid."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["PositionGrids", "axis_weights", "resize_positions"]

# 2**16 rows are 192 MiB for base in float32 and 144 MiB for so400m in bfloat16; photos resized to
# 256 patches meet about 250 grids, 62,000 rows. A miss costs far below 1 % of encoding the image.
_MAX_CACHED_ROWS = 2**16


def axis_weights(num_out: int, num_in: int, device: torch.device | None = None) -> Tensor:
    """[num_out, num_in] float32 weights that resize one axis, antialiased bilinear; rows sum to 1.

    A triangle around each output's centre, as wide as the reduction: the same weights as
    F.interpolate(mode="bilinear", antialias=True, align_corners=False). That function itself is
    not used: on CPU (torch 2.13, 2.14) it repeats row 0 where the output is one column wide.
    """
    scale = num_in / num_out
    outputs, inputs = (
        torch.arange(count, dtype=torch.float32, device=device) for count in (num_out, num_in)
    )
    centre = (outputs + 0.5) * scale - 0.5
    distance = (inputs - centre[:, None]).abs()
    weights = (1 - distance / max(scale, 1.0)).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def resize_positions(table: Tensor, h: int, w: int) -> Tensor:
    """[h * w, D] positions of an (h, w) grid, row-major, from a [side, side, D] float32 table."""
    side, _, width = table.shape
    columns = axis_weights(w, side, table.device) @ table  # [side, w, D]
    rows = axis_weights(h, side, table.device) @ columns.view(side, w * width)
    return rows.view(h * w, width)


class PositionGrids:
    """Positions of packs; keeps the most recently used grids on the table's device."""

    def __init__(self, table: Tensor, dtype: torch.dtype) -> None:
        """`table` [side, side, D] stays float32; grids are rounded to `dtype` after resizing."""
        self._table = table
        self._dtype = dtype
        self._grids: OrderedDict[tuple[int, int], Tensor] = OrderedDict()
        self._num_rows = 0

    def of(self, shapes: Sequence[tuple[int, int]]) -> Tensor:
        """[T, D] positions of all images of a pack, one image after the other."""
        return torch.cat([self._grid(h, w) for h, w in shapes])

    def _grid(self, h: int, w: int) -> Tensor:
        if (grid := self._grids.get((h, w))) is not None:
            self._grids.move_to_end((h, w))
            return grid
        grid = resize_positions(self._table, h, w).to(self._dtype)
        self._grids[h, w] = grid
        self._num_rows += h * w
        while self._num_rows > _MAX_CACHED_ROWS and len(self._grids) > 1:
            (old_h, old_w), _ = self._grids.popitem(last=False)
            self._num_rows -= old_h * old_w
        return grid
