"""Trying again: transient errors only, so often and no more, with growing pauses."""

import threading
import time

import pytest

from pipeline.errors import StorageError
from pipeline.retry import retrying


class Failing:
    def __init__(self, times, kind="transient"):
        self.calls, self._times, self._kind = 0, times, kind

    def __call__(self):
        self.calls += 1
        if self.calls <= self._times:
            raise StorageError("busy", "s3://b/x", "read", self._kind)
        return "done"


def test_transient_errors_are_tried_again():
    call = Failing(2)
    assert retrying(call, 6) == "done"
    assert call.calls == 3


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_the_tries_are_bounded_and_counted_in_the_message(retries):
    call = Failing(100)
    with pytest.raises(StorageError) as caught:
        retrying(call, retries)
    assert call.calls == retries + 1
    assert caught.value.transient
    assert str(caught.value).endswith(f"(tried {retries + 1} times)" if retries else "busy")


@pytest.mark.parametrize("kind", ["not_found", "denied", "changed", "full", "unsupported", "other"])
def test_other_errors_come_at_once(kind):
    call = Failing(1, kind)
    with pytest.raises(StorageError):
        retrying(call, 6)
    assert call.calls == 1


def test_pauses_double():
    start = time.monotonic()
    assert retrying(Failing(3), 3) == "done"
    assert 0.7 <= time.monotonic() - start < 3  # 0.2 + 0.4 + 0.8 s, each shortened by half at most


def test_stopping_ends_a_pause():
    stop = threading.Event()
    stop.set()
    call = Failing(100)
    with pytest.raises(StorageError):
        retrying(call, 20, stop)
    assert call.calls == 1
