import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder.chunks import chunk_images, fill_rows, list_images, sort_by_length


@pytest.fixture
def packs(make_pack):
    return [make_pack([(2, 3), (1, 1), (3, 2)]), make_pack([(1, 6)], ids=[7]), make_pack([])]


def test_images_of_several_packs_are_listed_with_their_rows(packs):
    images = list_images(packs)
    assert [(i.pack, i.place, i.first_row, i.length, i.grid) for i in images] == [
        (0, 0, 0, 6, (2, 3)),
        (0, 1, 6, 1, (1, 1)),
        (0, 2, 7, 6, (3, 2)),
        (1, 0, 0, 6, (1, 6)),
    ]


def test_equal_lengths_become_neighbours_and_keep_their_order(packs):
    images = sort_by_length(list_images(packs))
    assert [(image.pack, image.place) for image in images] == [(0, 1), (0, 0), (0, 2), (1, 0)]


def test_rows_are_those_of_the_images_in_the_order_asked_for(packs):
    images = sort_by_length(list_images(packs))
    target = np.zeros((19, 768), np.uint8)
    fill_rows(target, images, packs)
    a, b = packs[0].pixel_values, packs[1].pixel_values
    assert np.array_equal(target, np.concatenate([a[6:7], a[:6], a[7:], b]))


@given(lengths=st.lists(st.integers(1, 9), max_size=30), most=st.integers(1, 20))
def test_chunks_are_neighbours_within_the_bound_and_as_full_as_that_allows(lengths, most):
    from encoder.chunks import PackImage

    images = [
        PackImage(pack=0, place=place, first_row=0, length=length, grid=(1, length))
        for place, length in enumerate(lengths)
    ]
    chunks = list(chunk_images(images, most))
    assert [image for chunk in chunks for image in chunk] == images
    tokens = [sum(image.length for image in chunk) for chunk in chunks]
    for chunk, count in zip(chunks, tokens, strict=True):
        assert count <= most or len(chunk) == 1
    for count, following in zip(tokens, chunks[1:], strict=False):
        assert count + following[0].length > most
