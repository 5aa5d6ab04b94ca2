"""What two rounds of heartbeats say of the time between them."""

import pytest

from pipeline.heartbeat import EncoderState, LeaseState, load_between


def state(busy_s, encoding_for_s, *blocked_s, images=1):
    leases = tuple(
        LeaseState(attempt=str(number), images=images, blocked_s=seconds)
        for number, seconds in enumerate(blocked_s)
    )
    idle = tuple(0.0 for _ in leases)
    return EncoderState(busy_s=busy_s, encoding_for_s=encoding_for_s, leases=leases, idle_s=idle)


@pytest.mark.parametrize(
    ("before", "now", "busy"),
    [
        (state(10, 0, 0), state(11.5, 0, 0), 0.5),
        (state(10, 0, 0), state(10, 3, 0), 1.0),  # a pass began and runs
        (state(10, 2, 0), state(12.3, 0, 0), 0.1),  # it had run for 2 s before
        (state(10, 2, 0), state(10, 5, 0), 1.0),
        (state(10, 0, 0), state(10, 0, 0), 0.0),
    ],
)
def test_each_second_of_a_pass_is_counted_once(before, now, busy):
    load = load_between({"a": before}, {"a": now}, 3.0)
    assert load is not None
    assert load.busy_share == pytest.approx(busy)


def test_waits_are_the_mean_over_streams():
    load = load_between({"a": state(0, 0, 1.0, 5.0)}, {"a": state(0, 0, 2.5, 5.0)}, 3.0)
    assert load is not None
    assert load.blocked_share == pytest.approx(0.25)


def test_encoders_without_leases_or_seen_once_say_nothing():
    assert load_between({}, {"a": state(0, 0, 0.0)}, 3.0) is None
    assert load_between({"a": state(0, 0)}, {"a": state(0, 0)}, 3.0) is None
