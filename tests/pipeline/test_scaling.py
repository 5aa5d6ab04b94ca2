"""When pools grow and shrink, and by how much."""

import pytest

from pipeline.scaling import Load, PreprocessorScaler, encoders_wanted

STARVED = Load(busy_share=0.3, blocked_share=0.0)
BLOCKED = Load(busy_share=1.0, blocked_share=0.9)
CONTENT = Load(busy_share=0.95, blocked_share=0.2)


def sizes(loads, *, start, low=1, high=100, useful=100):
    """The sizes of the pool after each load."""
    scaler, size, seen = PreprocessorScaler(low=low, high=high), start, []
    for load in loads:
        decision = scaler.decide(size, load, useful=useful)
        size = size if decision is None else decision.size
        seen.append(size)
    return seen


@pytest.mark.parametrize(
    ("remaining", "wanted"), [(0, 0), (1, 1), (2, 2), (5, 5), (8, 8), (1000, 8)]
)
def test_encoders_follow_the_shards_that_are_left(remaining, wanted):
    assert encoders_wanted(low=2, high=8, remaining=remaining) == wanted


def test_starving_encoders_get_half_as_many_again_after_two_agreeing_looks():
    assert sizes([STARVED] * 8, start=4) == [4, 6, 6, 9, 9, 13, 13, 19]
    assert sizes([STARVED] * 6, start=1, high=3) == [1, 2, 2, 3, 3, 3]


def test_where_streams_wait_a_quarter_leaves_after_two_agreeing_looks():
    assert sizes([BLOCKED] * 8, start=16) == [16, 12, 12, 9, 9, 7, 7, 6]
    assert sizes([BLOCKED] * 8, start=3) == [3, 2, 2, 1, 1, 1, 1, 1]
    assert sizes([BLOCKED] * 4, start=4, low=3) == [4, 3, 3, 3]


@pytest.mark.parametrize(
    ("size", "blocked", "after"),
    [(2, 0.55, 2), (2, 0.65, 1), (4, 0.35, 4), (4, 0.45, 3), (16, 0.35, 16), (16, 0.45, 12)],
)
def test_nobody_leaves_whose_work_the_others_could_not_do_in_four_fifths_of_their_time(
    size, blocked, after
):
    load = Load(busy_share=1.0, blocked_share=blocked)
    assert sizes([load] * 2, start=size)[-1] == after


@pytest.mark.parametrize(
    ("busy", "blocked", "after"), [(0.4, 0.3, 2), (0.4, 0.9, 1), (0.9, 0.3, 1)]
)
def test_the_smallest_pool_grows_where_encoders_starve_and_streams_move(busy, blocked, after):
    load = Load(busy_share=busy, blocked_share=blocked)
    assert sizes([load] * 2, start=1)[-1] == after


@pytest.mark.parametrize(
    ("limit", "starved", "blocked"),
    [("may_shrink", 6, None), ("may_grow", None, 3)],
    ids=["while some still leave", "while some have no place yet"],
)
def test_no_second_step_in_a_direction_in_which_one_is_under_way(limit, starved, blocked):
    for load, size in ((STARVED, starved), (BLOCKED, blocked)):
        scaler = PreprocessorScaler(low=1, high=8)
        for _ in range(2):
            decision = scaler.decide(4, load, useful=100, **{limit: False})
        assert (decision and decision.size) == size


def test_a_pool_between_two_sizes_settles_on_the_larger():
    """One Preprocessor does 0.7 of what the Encoder takes."""
    scaler, size, seen = PreprocessorScaler(low=1, high=8), 1, []
    for _ in range(20):
        busy = min(1.0, 0.7 * size)
        load = Load(busy_share=busy, blocked_share=1 - busy / (0.7 * size))
        decision = scaler.decide(size, load, useful=100)
        size = size if decision is None else decision.size
        seen.append(size)
    assert seen == [1] + [2] * 19


def test_what_changes_its_mind_moves_nothing():
    assert sizes([STARVED, BLOCKED] * 5, start=4) == [4] * 10
    assert sizes([STARVED, CONTENT] * 5, start=4) == [4] * 10
    assert sizes([BLOCKED, CONTENT] * 5, start=4) == [4] * 10


def test_no_more_than_there_are_shards_left():
    assert sizes([STARVED] * 4, start=4, useful=5) == [4, 5, 5, 5]
    assert sizes([STARVED] * 4, start=6, useful=5) == [6] * 4, "the tail does not shrink it either"


def test_the_reason_has_both_shares():
    scaler = PreprocessorScaler(low=1, high=8)
    scaler.decide(4, STARVED, useful=100)
    decision = scaler.decide(4, STARVED, useful=100)
    assert decision.reason == "4 to 6 Preprocessors: Encoders compute 30%, streams wait 0%"
