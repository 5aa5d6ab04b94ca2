"""Which failures may pass, and trying again: the same request, bounded, with growing pauses."""

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import StorageError

_T = TypeVar("_T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 20.0


def retrying(call: Callable[[], _T], retries: int, stop: threading.Event | None = None) -> _T:
    """What the call returns, called again after StorageErrors that are transient.

    Pauses double from 0.2 s to 20 s, each shortened by up to half at random so that workers
    which failed together do not come back together. `stop` ends a pause, and the tries.
    """
    stop = stop or threading.Event()
    for attempt in range(retries):
        try:
            return call()
        except StorageError as error:
            if not error.transient:
                raise
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
            if stop.wait(pause * random.uniform(0.5, 1.0)):
                raise
    try:
        return call()
    except StorageError as error:
        if not error.transient or not retries:
            raise
        message = f"{error.message} (tried {retries + 1} times)"
        raise StorageError(message, error.url, error.operation, error.kind) from None
