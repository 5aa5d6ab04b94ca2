"""One function over very many items in a few threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(function: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """Yields the results in the order of the items, of which 2 * threads are under way at most.

    What the function raises comes out at its place and ends the rest.
    """
    under_way: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                under_way.append(pool.submit(function, item))
                if len(under_way) >= 2 * threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
