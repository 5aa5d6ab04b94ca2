import pytest
import torch
import torch.nn.functional as F

from encoder import position
from encoder.position import PositionGrids, axis_weights, resize_positions


@pytest.fixture
def table():
    return torch.randn(16, 16, 5, generator=torch.Generator().manual_seed(0))


def test_native_grid_is_the_table_itself(table):
    assert torch.equal(resize_positions(table, 16, 16), table.view(256, 5))


def test_hand_worked_axes():
    assert axis_weights(1, 2).tolist() == [[0.5, 0.5]]
    assert axis_weights(4, 2).tolist() == [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]
    # Centre 0.5, triangle two wide on either side: 3/4, 3/4, 1/4 and nothing, normalised.
    assert torch.allclose(axis_weights(2, 4)[0], torch.tensor([3, 3, 1, 0]) / 7)


@pytest.mark.parametrize("grid", [(1, 2), (5, 3), (14, 18), (4, 64), (64, 4), (1, 256), (40, 40)])
def test_equals_torch_interpolate(table, grid):
    expected = interpolate(table, grid)
    assert torch.allclose(resize_positions(table, *grid), expected, atol=2e-6)


@pytest.mark.parametrize("h", [1, 2, 15, 32, 64, 256])
def test_one_column_grids_vary_along_the_column(table, h):
    """torch's interpolate repeats row 0 there; one axis at a time it does not."""
    column = interpolate(table, (16, 1)).view(16, 1, 5)
    expected = F.interpolate(
        column.permute(2, 1, 0).double(), size=h, mode="linear", align_corners=False
    )
    if h < 16:  # linear mode has no antialias: resize the height beside a second, equal column
        expected = (
            interpolate(column.expand(16, 16, 5), (h, 2)).view(h, 2, 5)[:, :1].permute(2, 1, 0)
        )
    found = resize_positions(table, h, 1)
    assert torch.allclose(found, expected.permute(2, 1, 0).reshape(h, 5).float(), atol=2e-6)


def interpolate(table, grid):
    resized = F.interpolate(
        table.permute(2, 0, 1)[None].double(),
        size=grid,
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )
    return resized[0].permute(1, 2, 0).reshape(-1, table.shape[-1]).float()


def test_pack_positions_follow_the_order_of_its_grids(table):
    grids = PositionGrids(table, torch.float32)
    found = grids.of([(2, 3), (16, 16), (2, 3)])
    small = resize_positions(table, 2, 3)
    assert torch.equal(found, torch.cat([small, table.view(256, 5), small]))


def test_grids_are_rounded_after_resizing_in_float32(table):
    found = PositionGrids(table, torch.bfloat16).of([(5, 7)])
    assert torch.equal(found, resize_positions(table, 5, 7).bfloat16())


def test_cache_stays_bounded_and_keeps_recent_grids(table, monkeypatch):
    monkeypatch.setattr(position, "_MAX_CACHED_ROWS", 30)
    resized = []
    monkeypatch.setattr(
        position,
        "resize_positions",
        lambda table, h, w: resized.append((h, w)) or resize_positions(table, h, w),
    )
    grids = PositionGrids(table, torch.float32)
    for grid in [(2, 5), (3, 4), (2, 5), (1, 9), (2, 5), (3, 4)]:
        grids.of([grid])
    assert resized == [(2, 5), (3, 4), (1, 9), (3, 4)]  # (3, 4) was the least recently used
    grids.of([(6, 6)])  # larger than the whole cache: kept alone
    assert list(grids._grids) == [(6, 6)]
