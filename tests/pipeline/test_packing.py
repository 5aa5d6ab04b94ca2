import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.packing import group_images, make_pack
from pipeline.records import PatchedImage, SampleId

PATCH = 12  # a patch of 2 x 2 x 3 values


def image(index: int, tokens: int) -> PatchedImage:
    return PatchedImage(
        id=SampleId(shard="file:///s.tar", key=f"k{index}"),
        index=index,
        pixel_values=np.full((tokens, PATCH), index % 256, dtype=np.uint8),
        grid=(1, tokens),
        source_size=(2, 2 * tokens),
    )


def images(lengths: list[int]) -> list[PatchedImage]:
    return [image(index, tokens) for index, tokens in enumerate(lengths)]


lengths_lists = st.lists(st.integers(1, 40), max_size=120)


@given(lengths=lengths_lists, look_ahead=st.integers(0, 12))
def test_every_image_is_in_exactly_one_group_within_the_budget(lengths, look_ahead):
    groups = list(group_images(images(lengths), token_budget=40, look_ahead=look_ahead))
    indices = [item.index for group in groups for item in group]
    assert sorted(indices) == list(range(len(lengths)))
    assert all(0 < sum(len(item.pixel_values) for item in group) <= 40 for group in groups)


@given(lengths=lengths_lists, look_ahead=st.integers(0, 12))
def test_look_ahead_bounds_what_is_held_back(lengths, look_ahead):
    taken = 0

    def counted():
        nonlocal taken
        for item in images(lengths):
            taken += 1
            yield item

    yielded = 0
    for group in group_images(counted(), token_budget=40, look_ahead=look_ahead):
        yielded += len(group)
        # The group that is being filled may hold up to a budget of images besides the held ones.
        assert taken - yielded <= look_ahead + 1 + 40


@given(lengths=lengths_lists)
def test_without_look_ahead_images_keep_their_order(lengths):
    groups = list(group_images(images(lengths), token_budget=40, look_ahead=0))
    indices = list(itertools.chain.from_iterable([i.index for i in group] for group in groups))
    assert indices == sorted(indices)


@given(lengths=lengths_lists, look_ahead=st.integers(0, 12))
def test_grouping_is_a_function_of_the_input(lengths, look_ahead):
    runs = [
        [
            [item.index for item in group]
            for group in group_images(images(lengths), token_budget=40, look_ahead=look_ahead)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_look_ahead_fills_the_gap_with_a_later_image():
    groups = list(group_images(images([30, 20, 10]), token_budget=40, look_ahead=4))
    assert [[item.index for item in group] for group in groups] == [[0, 2], [1]]


def test_an_image_larger_than_the_budget_is_named():
    with pytest.raises(ValueError, match=r"'k0'.*41 tokens, token_budget is 40"):
        list(group_images(images([41]), token_budget=40, look_ahead=4))


def test_a_pack_joins_rows_grids_and_segments():
    pack = make_pack(images([3, 5]))
    assert pack.batch.cu_seqlens.tolist() == [0, 3, 8]
    assert pack.batch.spatial_shapes.tolist() == [[1, 3], [1, 5]]
    assert pack.batch.pixel_values[:, 0].tolist() == [0] * 3 + [1] * 5
    assert [row.index for row in pack.rows] == [0, 1]
