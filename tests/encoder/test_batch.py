"""Packs that agree pass; every single corruption is found and its image named."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from encoder.batch import PackedBatch, PackMismatchError, check_packed
from encoder.geometry import Geometry
from encoder.grid import target_grids

BUDGET = 64
RULE = Geometry(patch_size=16, max_num_patches=BUDGET)
SENTENCE = r"^Packed pixel_values token count does not match spatial_shapes: {} vs {}\. "
# Target grids at 64 patches: lying, upright, square, panorama, lying (patches of the first).
SIZES = [(480, 640), (640, 480), (512, 512), (180, 1000), (720, 960)]
GRIDS = [(7, 9), (9, 7), (8, 8), (3, 17), (7, 9)]
KEYS = ["a", "b", "c", "d", "e"]


def fields(sizes=SIZES, patch_size=16):
    sizes = np.array(sizes, np.int64).reshape(-1, 2)
    grids = target_grids(sizes, patch_size=16, max_num_patches=BUDGET)
    lengths = grids.prod(axis=1)
    return {
        "pixel_values": np.zeros((lengths.sum(), patch_size**2 * 3), np.uint8),
        "spatial_shapes": grids,
        "cu_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
        "source_sizes": sizes,
        "ids": tuple(f"key-{index}" for index in range(len(sizes))),
    }


def fault_of(**changed):
    """The message for a pack that is made of these fields."""
    with pytest.raises(PackMismatchError) as caught:
        PackedBatch(**changed).check_grids(RULE)
    return str(caught.value)


def check(grids=GRIDS, *, num_tokens=None, **given_facts):
    tokens = sum(h * w for h, w in GRIDS) if num_tokens is None else num_tokens
    check_packed(np.zeros((tokens, 768), np.uint8), np.array(grids), **given_facts)


def refuse(grids=GRIDS, **facts):
    with pytest.raises(PackMismatchError) as caught:
        check(grids, **facts)
    return str(caught.value)


LENGTHS = [h * w for h, w in GRIDS]
ALL = {"lengths": LENGTHS, "keys": KEYS, "source_sizes": SIZES, "max_num_patches": BUDGET}


def test_the_examples_are_target_grids():
    assert RULE.grids(np.array(SIZES)).tolist() == [list(grid) for grid in GRIDS]


# PackedBatch: any single corruption


sizes_of_packs = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1)


@given(sizes_of_packs)
def test_a_valid_pack_passes(sizes):
    pack = PackedBatch(**fields(sizes))
    pack.check_grids(RULE)
    assert (pack.num_images, pack.num_tokens) == (len(sizes), len(pack.pixel_values))
    check_packed(
        pack.pixel_values,
        pack.spatial_shapes,
        lengths=np.diff(pack.cu_seqlens),
        keys=pack.ids,
        source_sizes=pack.source_sizes,
        max_num_patches=BUDGET,
    )


def test_an_empty_pack_passes():
    pack = PackedBatch(**fields([]))
    pack.check_grids(RULE)
    assert (pack.num_images, pack.num_tokens) == (0, 0)


@given(sizes_of_packs, st.data())
def test_swapped_rows_and_columns_name_the_image(sizes, data):
    made = fields(sizes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    h, w = made["spatial_shapes"][index]
    assume(h != w)
    made["spatial_shapes"][index] = (w, h)
    message = fault_of(**made)
    assert f"Image {index} ('key-{index}') is " in message
    assert f"says ({w}, {h}): rows and columns are swapped" in message
    assert ("cannot be decided" in message) == any(height == width for height, width in sizes)


@given(sizes_of_packs, st.data())
def test_two_exchanged_shapes_name_both_images(sizes, data):
    made = fields(sizes)
    indices = st.integers(0, len(sizes) - 1)
    first, second = sorted((data.draw(indices), data.draw(indices)))
    shapes = made["spatial_shapes"]
    assume((shapes[first] != shapes[second]).any())
    shapes[[first, second]] = shapes[[second, first]]
    message = fault_of(**made)
    assert f"Image {first} ('key-{first}')" in message
    assert f"its grid and that of Image {second} ('key-{second}') are exchanged" in message


@given(sizes_of_packs, st.data())
def test_a_missing_row_of_shapes_names_its_image(sizes, data):
    made = fields(sizes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    found = made["spatial_shapes"] = np.delete(made["spatial_shapes"], index, axis=0)
    message = fault_of(**made)
    total = found.prod(axis=1).sum()
    assert re.match(SENTENCE.format(len(made["pixel_values"]), total), message)
    assert f"found {len(sizes) - 1} for {len(sizes)} keys" in message
    assert "1 missing" in message
    first, last = named_images(message)
    assert first <= index <= last


def named_images(message):
    """Range of images that the message leaves open for a missing row."""
    last, *first = re.search(
        r"without a row is Image (\d+) \S+?(?: or one .* from Image (\d+) \S+)?\.$", message
    ).groups()
    return int(first[0] or last), int(last)


@given(sizes_of_packs, st.data())
def test_a_surplus_row_of_shapes_is_found(sizes, data):
    made = fields(sizes)
    index = data.draw(st.integers(0, len(sizes)))
    made["spatial_shapes"] = np.insert(made["spatial_shapes"], index, (2, 5), axis=0)
    message = fault_of(**made)
    assert re.match(r"Packed pixel_values token count does not match", message)
    assert f"1 surplus; the first that belongs to no image is row {index}, (2, 5)" in message


@given(sizes_of_packs, st.data())
def test_lost_pixel_rows_name_the_image_where_they_end(sizes, data):
    made = fields(sizes)
    tokens = len(made["pixel_values"])
    kept = data.draw(st.integers(1, tokens - 1)) if tokens > 1 else 0
    made["pixel_values"] = made["pixel_values"][:kept]
    message = fault_of(**made)
    assert re.match(SENTENCE.format(kept, tokens), message)
    index = int(np.searchsorted(made["cu_seqlens"][1:], kept, side="right"))
    assert f"Image {index} ('key-{index}')" in message or kept == 0


@given(sizes_of_packs, st.data())
def test_a_wrong_end_of_rows_names_the_image(sizes, data):
    made = fields(sizes)
    index = data.draw(st.integers(1, len(sizes)))
    shift = data.draw(st.integers(-200, 200).filter(bool))
    made["cu_seqlens"][index] += shift
    message = fault_of(**made)
    # The image that ends there, or its successor where the boundary passed that one's end.
    assert f"Image {index - 1} ('key-{index - 1}')" in message or (
        made["cu_seqlens"][index] >= made["cu_seqlens"][min(index + 1, len(sizes))]
        and f"Image {index} ('key-{index}')" in message
    )


@given(sizes_of_packs, st.data())
def test_a_wrong_grid_names_the_image(sizes, data):
    made = fields(sizes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    grid = data.draw(st.tuples(st.integers(-70, 2**63 - 1), st.integers(-70, 2**40)))
    assume(grid != tuple(made["spatial_shapes"][index]))
    made["spatial_shapes"][index] = grid
    message = fault_of(**made)
    assert f"Image {index} ('key-{index}')" in message
    assert "no fault could be named" not in message


def test_products_that_overflow_int64_are_found():
    made = fields([(480, 640)])
    h, w = 23, (63 + 2**64) // 23
    assert (np.array([h]) * np.array([w])).tolist() == [63]
    made["spatial_shapes"][0] = (h, w)
    with pytest.raises(PackMismatchError, match=rf"Image 0 \('key-0'\) has \(23, {w}\)"):
        PackedBatch(**made)


def test_two_negative_sides_are_found():
    made = fields()
    made["spatial_shapes"][1] *= -1
    with pytest.raises(PackMismatchError, match=r"Image 1 \('key-1'\) has \(-9, -7\)"):
        PackedBatch(**made)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pixel_values", np.zeros((302, 768), np.float32), "2-d uint8 NumPy array, found float32"),
        ("pixel_values", np.zeros((1, 302, 768), np.uint8), r"found uint8 \(1, 302, 768\)"),
        ("pixel_values", torch.zeros(302, 768, dtype=torch.uint8), "found torch.uint8"),
        ("pixel_values", np.zeros((304, 1536), np.uint8), r"2\*\*|patch_size\*\*2 \* 3 values"),
        ("spatial_shapes", np.ones((5, 2), np.int32), "2-d int64 NumPy array, found int32"),
        ("spatial_shapes", np.ones((5, 3), np.int64), r"must be \[N, 2\].* frames"),
        ("cu_seqlens", np.zeros(6, np.int64), "1-d int32 NumPy array, found int64"),
        ("cu_seqlens", np.zeros(0, np.int32), r"N \+ 1 = 6 values for 5 ids, found 0"),
        ("cu_seqlens", np.arange(1, 7, dtype=np.int32), "must start at 0, found 1"),
        ("cu_seqlens", np.array([0, 63, 63, 70, 80, 90], np.int32), "Image 1 .* rows 63:63"),
        ("source_sizes", np.ones((4, 2), np.int64), r"found \(4, 2\) for 5 ids"),
        ("source_sizes", np.array([*SIZES[:4], (0, 9)]), r"Image 4 .* has \(0, 9\)"),
        ("ids", ("a", "b", "c", "d", "b"), r"must be distinct, Image 4 \('b'\) came before"),
        ("ids", ("a", "b"), r"N \+ 1 = 3 values for 2 ids, found 6"),
    ],
)
def test_fields_that_are_no_pack_are_refused(field, value, message):
    with pytest.raises(PackMismatchError, match=message):
        PackedBatch(**{**fields(), field: value})


def test_a_fixed_resolution_has_one_grid_for_every_source():
    square = Geometry(patch_size=16, max_num_patches=16, square=70)
    made = fields(np.array([[480, 640], [3, 5]]))
    made["spatial_shapes"][:] = 4
    made["cu_seqlens"][:] = (0, 16, 32)
    made["pixel_values"] = np.zeros((32, 768), np.uint8)
    pack = PackedBatch(**made)
    pack.check_grids(square)
    with pytest.raises(PackMismatchError, match="the patches are of 16 px"):
        pack.check_grids(Geometry(patch_size=17, max_num_patches=16, square=70))
    pack.spatial_shapes[1] = (2, 8)
    message = r"to 70 x 70 px, the grid \(4, 4\) at patch_size 16, .* Image 1 \('key-1'\) has the grid \(2, 8\)"
    with pytest.raises(PackMismatchError, match=message):
        pack.check_grids(square)


def test_patches_of_another_size_are_refused_by_check_grids():
    with pytest.raises(PackMismatchError, match=r"has 588, the width of patch size 14\."):
        PackedBatch(**fields(patch_size=14)).check_grids(RULE)


def test_a_pickled_pack_checks_again_when_asked():
    pack = PackedBatch(**fields())
    pack.spatial_shapes[3] = (17, 2)
    received = pickle.loads(pickle.dumps(pack))
    with pytest.raises(PackMismatchError, match=r"\('key-3'\) has 51 .* \(17, 2\), which is 34\.$"):
        received.check()


def test_replacing_a_field_checks_again():
    with pytest.raises(PackMismatchError, match="distinct"):
        replace(PackedBatch(**fields()), ids=("a",) * 5)


# check_packed: what other people's tensors look like


def nested(array):
    return array.tolist()


def unsqueezed(array):
    return torch.from_numpy(array)[None]


@pytest.mark.parametrize("pixels", [np.asarray, torch.from_numpy, unsqueezed, nested, list])
@pytest.mark.parametrize("small", [np.asarray, torch.from_numpy, nested, list])
def test_any_tensors_that_agree_pass(pixels, small):
    shapes, lengths = np.array(GRIDS), np.array(LENGTHS)
    values = np.zeros((lengths.sum(), 768), np.uint8)
    check_packed(pixels(values), small(shapes))
    check_packed(
        pixels(values),
        small(shapes),
        lengths=small(lengths),
        keys=KEYS,
        source_sizes=small(np.array(SIZES)),
        max_num_patches=BUDGET,
    )


def test_nothing_packed_passes():
    check_packed(np.zeros((0, 768)), np.zeros((0, 2), np.int64))
    check_packed(torch.zeros(1, 0, 768), [], lengths=[], keys=[], source_sizes=[])


class Unreadable:
    """Pixels on a device that this process cannot read; only their layout may be looked at."""

    shape = (302, 768)
    dtype = torch.bfloat16

    def __array__(self, *args, **kwargs):
        raise AssertionError("pixels were copied")

    tolist = cpu = numpy = __getitem__ = __iter__ = __array__


def test_pixels_are_not_copied():
    grids = [(7, 9), (9, 7), (8, 8), (7, 16)]
    check_packed(Unreadable(), grids)
    with pytest.raises(PackMismatchError, match=SENTENCE.format(302, 190)):
        check_packed(Unreadable(), grids[:3])


class OnDevice:
    """A tensor that NumPy cannot read, as those on a GPU are."""

    def __init__(self, tensor):
        self.tolist, self.dtype, self.shape = tensor.tolist, tensor.dtype, tensor.shape

    def __array__(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize("wrap", [OnDevice, lambda tensor: list(map(OnDevice, tensor))])
def test_shapes_on_a_device_are_read(wrap):
    check(GRIDS)
    check_packed(np.zeros((304, 768), np.uint8), wrap(torch.tensor(GRIDS)))
    with pytest.raises(PackMismatchError, match=r"int8 stores as -112\. Make spatial_shapes int64"):
        check_packed(np.zeros((144, 768)), wrap(torch.tensor([(12, 12)], dtype=torch.int8)))


# One fault each


def test_the_totals_begin_the_message():
    message = refuse([*GRIDS[:4], (7, 8)])
    assert message == (
        "Packed pixel_values token count does not match spatial_shapes: 304 vs 297. "
        "Pass lengths= (the rows written for each image) to find the image at fault."
    )


def test_without_lengths_the_sources_find_the_grid():
    message = refuse([*GRIDS[:4], (7, 8)], source_sizes=SIZES, max_num_patches=BUDGET)
    assert re.match(SENTENCE.format(304, 297), message)
    assert "Image 4 is 720 x 960 pixels (height x width), which makes the grid (7, 9)" in message


def test_without_lengths_grids_that_fit_their_sources_leave_the_rows():
    message = refuse(num_tokens=300, source_sizes=SIZES, max_num_patches=BUDGET)
    assert "300 vs 304. Every grid fits its source size. Pass lengths=" in message


def test_a_single_image_needs_no_lengths():
    message = refuse([(7, 9)], num_tokens=60, keys=["a"])
    assert "60 vs 63. Image 0 ('a') has 60 rows of pixel_values and the grid (7, 9)" in message


def test_lengths_find_the_first_image():
    message = refuse([*GRIDS[:3], (3, 16), (7, 8)], lengths=LENGTHS, keys=KEYS)
    assert message.endswith(
        "304 vs 294. Image 3 ('d') has 51 rows of pixel_values and the grid (3, 16), which is 48."
    )


def test_lengths_that_agree_leave_the_pixels():
    message = refuse(lengths=LENGTHS, keys=KEYS, num_tokens=200)
    assert "pixel_values ends 104 rows early, within the rows of Image 3 ('d')" in message
    message = refuse(lengths=LENGTHS, keys=KEYS, num_tokens=310)
    assert "6 rows of pixel_values follow those of the last image" in message


@pytest.mark.parametrize("facts", [{}, {"max_num_patches": BUDGET}])
def test_rows_and_columns_swapped(facts):
    grids = [(7, 9), (7, 9), *GRIDS[2:]]
    message = refuse(grids, source_sizes=SIZES, keys=KEYS, lengths=LENGTHS, **facts)
    assert "Image 1 ('b') is 640 x 480 pixels (height x width)" in message
    assert "spatial_shapes says (7, 9): rows and columns are swapped." in message
    assert message.endswith(
        "Sources that are square: 1 of 5. Whether rows and columns are swapped "
        "there, or such images exchanged, cannot be decided."
    )


def test_swapped_needs_only_the_sources():
    message = refuse([(9, 7), *GRIDS[1:]], source_sizes=SIZES)
    assert "Image 0 is 480 x 640" in message
    assert "rows and columns are swapped" in message


def test_exchanged_mirror_images_may_also_be_swapped():
    message = refuse([GRIDS[1], GRIDS[0], *GRIDS[2:]], **ALL)
    assert "Image 0 ('a')" in message
    assert "swapped, or its grid and that of Image 1 ('b') are exchanged" in message


@pytest.mark.parametrize("facts", [{}, {"max_num_patches": BUDGET}])
def test_images_of_equal_length_exchanged(facts):
    # (4, 16) and (8, 8) both have 64 patches and neither is upright
    sizes, grids = [(512, 512), (100, 400), (480, 640)], [(4, 16), (8, 8), (7, 9)]
    facts = {"source_sizes": sizes, "keys": KEYS[:3], "lengths": [64, 64, 63], **facts}
    message = refuse(grids, num_tokens=191, **facts)
    assert "Image 0 ('a') is 512 x 512 pixels" in message
    assert "says (4, 16): its grid and that of Image 1 ('b') are exchanged" in message
    assert "1 of 3" in message


def test_images_of_unequal_length_exchanged_need_only_lengths():
    message = refuse([*GRIDS[:2], GRIDS[3], GRIDS[2], GRIDS[4]], lengths=LENGTHS, keys=KEYS)
    assert message.startswith("Image 2 ('c') has 64 rows of pixel_values and the grid (3, 17)")
    assert "its grid and that of Image 3 ('d') are exchanged" in message


@pytest.mark.parametrize("facts", [{"lengths": LENGTHS}, ALL])
def test_images_in_another_order(facts):
    message = refuse([*GRIDS[:2], GRIDS[3], GRIDS[4], GRIDS[2]], **facts)
    assert "Image 2" in message
    assert "another order than the images" in message


def test_square_sources_exchanged_pass_as_nobody_can_tell():
    sizes = [(512, 512), (300, 300)]
    check([(8, 8), (8, 8)], num_tokens=128, source_sizes=sizes, max_num_patches=BUDGET)


def test_sources_given_as_width_and_height():
    turned = [(width, height) for height, width in SIZES]
    message = refuse(source_sizes=turned, max_num_patches=BUDGET)
    assert "Image 0 is 640 x 480 pixels" in message
    assert "rows and columns are swapped, or " in message
    assert "or source_sizes holds (width, height)." in message


def test_a_rule_of_its_own_is_only_held_to_the_target_where_a_budget_is_given():
    own = {"lengths": [60], "source_sizes": [(480, 640)], "keys": ["a"]}
    check([(6, 10)], num_tokens=60, **own)
    message = refuse([(6, 10)], num_tokens=60, max_num_patches=BUDGET, **own)
    assert "which makes the grid (7, 9) at patch_size 16 and max_num_patches 64" in message


@pytest.mark.parametrize("known", [("lengths",), ("lengths", "keys"), tuple(ALL)])
@pytest.mark.parametrize("index", [2, 3, 4])
def test_a_missing_row_of_shapes(known, index):
    facts = {name: ALL[name] for name in known}
    message = refuse([*GRIDS[:index], *GRIDS[index + 1 :]], **facts)
    assert re.match(SENTENCE.format(304, 304 - LENGTHS[index]), message)
    assert "found 4 for" in message
    assert f"1 missing; the first without a row is Image {index}" in message
    assert (f"Image {index} ({KEYS[index]!r})" in message) == ("keys" in facts)


def test_a_missing_row_among_equal_ones_says_so():
    message = refuse(GRIDS[1:], lengths=LENGTHS, keys=KEYS)
    assert "Image 1 ('b') or one of the equal ones before it, from Image 0 ('a')" in message
    message = refuse(GRIDS[1:], **ALL)  # the grids differ where the lengths do not
    assert message.endswith("the first without a row is Image 0 ('a').")


def test_several_missing_rows():
    message = refuse([GRIDS[0], GRIDS[1], GRIDS[4]], **ALL)
    assert "2 missing; the first without a row is Image 2 ('c')" in message


def test_a_missing_row_that_only_keys_tell_of():
    message = refuse(GRIDS[:4], keys=KEYS)
    assert "1 missing; pass lengths= or source_sizes= with max_num_patches= to find" in message


def test_a_missing_row_and_a_wrong_one():
    message = refuse([GRIDS[0], (2, 2), *GRIDS[3:]], lengths=LENGTHS, keys=KEYS)
    assert "and others differ; the first is Image 1 ('b'): patches 63 expected" in message


def test_a_surplus_row():
    message = refuse([*GRIDS[:3], (2, 2), *GRIDS[3:]], **ALL)
    assert re.match(SENTENCE.format(304, 308), message)
    assert "found 6 for 5 keys and 5 lengths and 5 source_sizes: 1 surplus" in message
    assert "the first that belongs to no image is row 3, (2, 2)" in message


def test_other_lists_of_another_length():
    assert "lengths must have one entry for each image, found 4" in refuse(
        lengths=LENGTHS[:4], keys=KEYS
    )
    assert "source_sizes must have one entry for each image, found 4" in refuse(
        source_sizes=SIZES[:4], keys=KEYS
    )


@pytest.mark.parametrize("known", [("lengths",), tuple(ALL)])
def test_a_grid_of_patch_size_14_with_rows_cut_at_16(known):
    """The image was resized to 112 x 144 px: 7 x 9 patches of 16, 8 x 10 whole ones of 14."""
    message = refuse([(8, 10), *GRIDS[1:]], **{name: ALL[name] for name in known})
    assert re.match(SENTENCE.format(304, 321), message)
    assert "has 63 rows of pixel_values and the grid (8, 10), which is 80: " in message
    assert "that is the grid at patch size 14, the rows were cut with 16." in message


def test_a_grid_of_the_image_before_its_resize():
    message = refuse([(30, 40), *GRIDS[1:]], **ALL)
    assert "the grid (30, 40), which is 1200: that is the grid of the image before its" in message


def test_a_grid_over_the_budget():
    message = refuse(max_num_patches=63, keys=KEYS)
    assert "at most max_num_patches = 63 patches, Image 2 ('c') has (8, 8), which is 64" in message


def test_rows_that_do_not_fit_a_sound_grid():
    facts = {**ALL, "lengths": [60, *LENGTHS[1:]]}
    assert "the grid fits the source size, so the rows are wrong" in refuse(num_tokens=301, **facts)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (np.array(GRIDS, np.float32), "must hold integers, found float32"),
        (torch.tensor(GRIDS, dtype=torch.bfloat16), "must hold integers, found bfloat16"),
        (torch.tensor(GRIDS, dtype=torch.float16).requires_grad_(), "found float16"),
        (np.array(GRIDS) > 8, "must hold integers, found bool"),
        (torch.tensor(GRIDS) > 8, "must hold integers, found bool"),
        ([(7.0, 9.0)], "must hold integers, found float64"),
        ([("7", "9")], "must hold integers, found str"),
        (np.array([(1, 7, 9), (1, 9, 7)]), r"found int64 of shape \(2, 3\): drop the leading col"),
        (np.array([GRIDS]), r"found int64 of shape \(1, 5, 2\): drop the leading axis"),
        (torch.tensor(GRIDS).T, r"found int64 of shape \(2, 5\): transpose it"),
        (np.array([7, 9]), r"one image is one row, \[\[h, w\]\]"),
        ([(7, 9), (9, 7, 1)], "found ragged list"),
        (None, r"must be \[N, 2\], \(h, w\) in patches, found object of shape \(\)"),
        ([(7, 9), (0, 7)], r"must be positive, .* Image 1 \('b'\) has \(0, 7\)"),
        ([(7, 9), (-9, -7)], r"must be positive, .* Image 1 \('b'\) has \(-9, -7\)"),
        (np.array([(16, 17)], np.uint8), r"Image 0 \('a'\) has \(16, 17\).*uint8 stores as 16\."),
        (np.array([(200, 200)], np.int16), "40000 patches, which int16 stores as -25536"),
        (torch.tensor([(200, 200)], dtype=torch.int16), "which int16 stores as -25536"),
        (np.array([(2**40, 2**40)]), "which int64 stores as 0"),
        ([], "spatial_shapes has no rows"),
    ],
)
def test_shapes_that_are_no_grids(shapes, message):
    facts = {"keys": KEYS} if "Image" in message else {}
    with pytest.raises(PackMismatchError, match=message):
        check_packed(np.zeros((304, 768), np.uint8), shapes, **facts)


def test_an_overflow_shows_the_totals_that_the_encoder_would():
    with pytest.raises(PackMismatchError, match=SENTENCE.format(272, 16)):
        check_packed(np.zeros((272, 768), np.uint8), np.array([(16, 17)], np.uint8))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((4, 64, 768)), r"found the padded shape \(4, 64, 768\): take .*_mask is 1"),
        ([np.zeros((63, 768))] * 5, "found a list of 5 tensors: take .* and concatenate them"),
        (np.zeros((5, 3, 112, 144)), "cut the images into patches first"),
        (np.zeros(768), r"must be \[T, P\] or \[1, T, P\], found shape \(768,\)"),
        (
            np.zeros((304, 588)),
            r"= 768 values \(patch_size 16\), .* 588, the width of patch size 14",
        ),
        (torch.zeros(304, 3072), "3072, the width of patch size 32"),
        (
            torch.zeros(304, 768).view(torch.uint8),
            "size 32, or 4 bytes for each value: float patch",
        ),
        (
            torch.zeros(304, 768).half().view(torch.uint8),
            "1536, 2 bytes for each value: float patch",
        ),
        (np.zeros((304, 256), np.uint8), "1 channels at patch size 16: convert to RGB"),
        (np.zeros((304, 1024), np.uint8), "4 channels at patch size 16: convert to RGB"),
        (np.zeros((304, 769), np.uint8), r"pixel_values has 769\.$"),
        (np.zeros((0, 768)), "pixel_values has no rows"),
    ],
)
def test_pixels_that_are_no_patches(pixels, message):
    with pytest.raises(PackMismatchError, match=message):
        check_packed(pixels, GRIDS)


def test_a_padded_batch_shows_both_totals():
    with pytest.raises(PackMismatchError, match=SENTENCE.format(320, 304)):
        check_packed(np.zeros((5, 64, 768)), GRIDS)


@pytest.mark.parametrize("facts", [{}, {"lengths": [64] * 5}, {**ALL, "lengths": [64] * 5}])
def test_padding_that_was_packed(facts):
    message = refuse(num_tokens=320, **facts)
    assert re.match(SENTENCE.format(320, 304), message)
    assert "as if padding was packed too; take the rows where pixel_attention_mask is 1" in message


def test_rows_too_many_are_not_blamed_on_a_patch_size():
    """The grid of a source is the same for any patch size: that of 14 px explains nothing."""
    facts = {"lengths": [64, *LENGTHS[1:]], "source_sizes": SIZES}
    message = refuse(num_tokens=305, **facts)
    assert message.endswith("Image 0 has 64 rows of pixel_values and the grid (7, 9), which is 63.")


def test_one_wrong_grid_among_equal_ones_is_not_called_padding():
    message = refuse([(7, 9), (7, 9), (7, 8)], num_tokens=189, lengths=[63] * 3)
    assert "Image 2 has 63 rows" in message
    assert "padding" not in message


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"lengths": np.cumsum([0, *LENGTHS])}, "found cu_seqlens: pass its differences"),
        ({"lengths": [0, 63, 64, 51, 63]}, "lengths says 0 for Image 0"),
        (
            {"lengths": [63, 0, 64, 51, 63]},
            "Every image must have rows, lengths says 0 for Image 1",
        ),
        ({"lengths": [63.0, 63, 64, 51, 63]}, "lengths must hold integers, found float64"),
        ({"lengths": [LENGTHS]}, r"lengths must be \[N\], .* found shape \(1, 5\)"),
        ({"source_sizes": [(0, 1)] * 5}, r"source_sizes must be positive, .* Image 0 has \(0, 1\)"),
        ({"source_sizes": np.ones((5, 2))}, "source_sizes must hold integers, found float64"),
        ({"source_sizes": [480, 640]}, r"source_sizes must be \[N, 2\], \(height, width\)"),
    ],
)
def test_other_facts_that_are_unsound(facts, message):
    with pytest.raises(PackMismatchError, match=message):
        check(**facts)
