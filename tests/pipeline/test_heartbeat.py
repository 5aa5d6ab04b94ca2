"""What two rounds of heartbeats say of the time between them."""

import pytest

from pipeline.heartbeat import EncoderState, LeaseState, StreamTimes, load_between


def state(busy_s, encoding_for_s=0.0, *, streamed_s=0.0, blocked_s=0.0, leases=1):
    return EncoderState(
        busy_s=busy_s,
        encoding_for_s=encoding_for_s,
        streams=StreamTimes(streamed_s=streamed_s, blocked_s=blocked_s),
        leases=tuple(LeaseState(attempt=str(number)) for number in range(leases)),
        idle_s=(0.0,) * leases,
    )


@pytest.mark.parametrize(
    ("before", "now", "busy"),
    [
        ((10, 0), (11.5, 0), 0.5),
        ((10, 0), (10, 3), 1.0),  # a pass began and runs
        ((10, 2), (12.3, 0), 0.1),  # it had run for 2 s before
        ((10, 2), (10, 5), 1.0),
        ((10, 0), (10, 0), 0.0),
    ],
)
def test_each_second_of_a_pass_is_counted_once(before, now, busy):
    load = load_between({"a": state(*before)}, {"a": state(*now, streamed_s=1)}, 3.0)
    assert load is not None
    assert load.busy_share == pytest.approx(busy)


def test_a_stream_is_added_up_pack_by_pack():
    times, told = StreamTimes(), {}
    for seconds in ({"read": 1.0, "blocked": 0.0}, {"read": 1.5, "blocked": 2.0}):
        times.add(told, seconds)
        told = seconds
    times.add({}, {"read": 1.0, "blocked": 0.5})  # another stream
    assert times == StreamTimes(streamed_s=5.0, blocked_s=2.5)


def test_waits_are_a_share_of_the_time_that_was_heard_of():
    """A pack after 10 s tells of all of them, in a window of 3 s."""
    before, now = state(0, streamed_s=2, blocked_s=1), state(0, streamed_s=12, blocked_s=9)
    other = state(0, streamed_s=1), state(0, streamed_s=7)
    load = load_between({"a": before, "b": other[0]}, {"a": now, "b": other[1]}, 3.0)
    assert load is not None
    assert load.blocked_share == pytest.approx(8 / 16)


def test_a_busy_encoder_that_no_pack_reaches_says_nothing_and_an_idle_one_starves():
    assert load_between({"a": state(0)}, {"a": state(3)}, 3.0) is None
    load = load_between({"a": state(0)}, {"a": state(1)}, 3.0)
    assert load is not None
    assert load.blocked_share == 0


def test_encoders_without_leases_or_seen_once_say_nothing():
    assert load_between({}, {"a": state(0)}, 3.0) is None
    assert load_between({"a": state(0)}, {"a": state(0, leases=0)}, 3.0) is None
