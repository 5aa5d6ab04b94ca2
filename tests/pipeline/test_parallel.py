"""Items through threads: order, bound, errors."""

import threading
import time

import pytest

from pipeline.parallel import in_threads


def test_results_come_in_the_order_of_the_items():
    def slow_first(number):
        time.sleep(0.05 if number == 0 else 0)
        return number * 10

    assert list(in_threads(slow_first, range(20), threads=4)) == [n * 10 for n in range(20)]


def test_few_items_are_taken_ahead_of_the_reader():
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    results = in_threads(lambda number: number, items(), threads=3)
    for _ in range(5):
        next(results)
    assert len(taken) <= 5 + 2 * 3
    results.close()


def test_several_threads_work_at_once():
    meeting = threading.Barrier(3, timeout=10)
    assert len(list(in_threads(lambda _: meeting.wait(), range(3), threads=3))) == 3


def test_an_error_comes_out_at_its_place():
    def fail_at_three(number):
        if number == 3:
            raise ValueError("three")
        return number

    results = in_threads(fail_at_three, range(100), threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
