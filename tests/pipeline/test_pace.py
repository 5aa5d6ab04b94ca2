"""Rates and the time left, while pools change."""

import pytest

from pipeline.pace import Pace
from pipeline.work import OpenLease, Progress
from pipeline.writer import Lease


def run(*phases, total=100, images_per_shard=10):
    """(pace, progress) after phases of (seconds, images a second, Preprocessors), two looks a second."""
    progress = Progress(total=total, already_done=0, token_budget=1)
    pace, now, images = Pace(), 0.0, 0.0
    lease = progress.open["reference"] = OpenLease(lease=Lease(url="file:///a.tar"))
    for seconds, rate, size in phases:
        progress.preprocessors = size
        for _ in range(round(2 * seconds)):
            pace.add(progress, now)
            now += 0.5
            images += 0.5 * rate
            progress.done = int(images // images_per_shard)
            progress.read = progress.embedded = progress.done * images_per_shard
            lease.images = int(images) - progress.embedded
            progress.tokens = progress.embedded * 4
            lease.tokens = lease.images * 4
    pace.add(progress, now)
    return pace, progress


def test_steady():
    pace, progress = run((30, 8, 1))
    assert pace.per_second() == (8, 32)
    assert pace.seconds_left(progress) == pytest.approx((1000 - 240) / 8)


def test_the_time_left_follows_a_pool_that_has_grown():
    pace, progress = run((30, 2, 1), (12, 20, 10))
    assert pace.per_second()[0] == pytest.approx(20, rel=0.01)
    assert pace.seconds_left(progress) == pytest.approx((1000 - 300) / 20, rel=0.01)


def test_a_pool_that_changed_a_moment_ago_is_not_judged_by_that_moment():
    pace, _ = run((30, 8, 1), (2, 0, 2))
    assert pace.per_second()[0] == pytest.approx(8 * 30 / 32)


def test_nothing_older_than_a_minute_counts():
    pace, _ = run((100, 50, 1), (60, 2, 1))
    assert pace.per_second()[0] == pytest.approx(2, rel=0.02)


def test_rejects_are_work_done_too():
    progress = Progress(total=4, already_done=0, token_budget=1)
    pace = Pace()
    pace.add(progress, 0.0)
    progress.done, progress.read, progress.embedded = 1, 10, 4
    lease = progress.open["reference"] = OpenLease(lease=Lease(url="file:///a.tar"))
    lease.rejected.update(decode_error=5)
    pace.add(progress, 5.0)
    assert pace.per_second()[0] == 3
    assert pace.seconds_left(progress) == pytest.approx(25 / 3)


def test_unknown_before_the_first_shard_and_while_nothing_moves():
    pace, progress = run((1, 0, 1))
    assert pace.per_second() == (0, 0)
    assert pace.seconds_left(progress) is None
    pace, progress = run((100, 8, 1), (70, 0, 1))
    assert pace.seconds_left(progress) is None


def test_a_lost_lease_is_no_negative_rate():
    pace, progress = run((20, 8, 1))
    progress.open.clear()
    progress.read = progress.done = 0
    pace.add(progress, 21.0)
    assert pace.per_second()[0] == 0


def test_looks_of_a_moment_are_one_point():
    """Leases of a few milliseconds: the driver looks after each."""
    progress, pace = Progress(total=1, already_done=0, token_budget=1), Pace()
    for number in range(30_000):
        progress.read = number
        pace.add(progress, number / 1000)
    assert len(pace._points) <= 62
    assert pace.per_second()[0] == pytest.approx(1000)
