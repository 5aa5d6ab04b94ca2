"""Throughput over time, from the times of shards."""

import numpy as np
import pytest

from pipeline.report_times import make_timeline
from pipeline.words import bytes_text, clipped, duration_text, share_text, shortened


def test_images_are_spread_over_the_time_of_their_shard():
    # 100 images in the first third, nothing, 50 in the last third
    timeline = make_timeline([1000.0, 1020.0], [1010.0, 1030.0], [100, 50])
    assert timeline.start == 1000.0
    assert timeline.span_s == pytest.approx(30)
    assert timeline.working_s == pytest.approx(20)
    thirds = timeline.images_per_s.reshape(3, -1)
    np.testing.assert_allclose(thirds.mean(axis=1), [10, 0, 5], atol=1e-9)
    assert (timeline.images_per_s @ np.diff(timeline.edges)) == pytest.approx(150)
    np.testing.assert_allclose(timeline.open_shards.reshape(3, -1).mean(axis=1), [1, 0, 1])


def test_shards_at_the_same_time_count_twice():
    timeline = make_timeline([0.0, 0.0, 5.0], [10.0, 10.0, 10.0], [10, 10, 10])
    assert timeline.open_shards[0] == pytest.approx(2)
    assert timeline.open_shards[-1] == pytest.approx(3)
    assert timeline.working_s == pytest.approx(10)


def test_a_shard_of_no_length_is_counted():
    timeline = make_timeline([5.0], [5.0], [7])
    assert (timeline.images_per_s @ np.diff(timeline.edges)) == pytest.approx(7)
    assert make_timeline([], [], []) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (share_text(0.0), "0.0 %"),
        (share_text(0.0001), "< 0.1 %"),
        (share_text(0.9999), "> 99.9 %"),
        (share_text(1), "100.0 %"),
        (bytes_text(1023), "1,023 B"),
        (bytes_text(3 << 29), "1.5 GiB"),
        (duration_text(0.05), "50 ms"),
        (duration_text(59.99), "60.0 s"),
        (duration_text(245), "4 min 05 s"),
        (duration_text(3600 * 3 + 12 * 60), "3 h 12 min"),
        (duration_text(3600 * 51), "2 d 03 h"),
        (clipped("a" * 50 + "b" * 50, 11), "aaa ... bbb"),
        (shortened("a" * 50, 10), "aaaaaa ..."),
        (shortened("short", 10), "short"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected
