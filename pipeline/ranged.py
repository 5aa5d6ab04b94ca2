"""Reading an object front to back in ranges, a few of them fetched ahead of the reader."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from pipeline.urls import ObjectInfo

Fetch = Callable[[int, int, threading.Event], memoryview]  # (start, end, stop) -> those bytes


class RangedReader:
    """A binary stream over one version of one object; a context manager.

    Memory is (read_ahead + 1) ranges. Nothing is held open between ranges, so the reader may pause
    for as long as it likes. Errors of a range come out of the `read` that reaches it.
    """

    def __init__(
        self, info: ObjectInfo, fetch: Fetch, *, range_bytes: int, read_ahead: int
    ) -> None:
        self.info = info
        self._fetch, self._range_bytes, self._read_ahead = fetch, range_bytes, read_ahead
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, read_ahead), thread_name_prefix="embedmill-range")
        self._coming: deque[Future[memoryview]] = deque()
        self._asked = 0  # bytes that were asked for
        self._current = memoryview(b"")
        self._tell = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """None; returns at once, a range still under way ends by itself and is dropped."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._coming.clear()
        self._current = memoryview(b"")

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._tell

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end; all that is left for a negative size.

        Raises StorageError: `changed` where the object is no longer the one that was opened.
        """
        if self._stop.is_set():
            raise ValueError("read of a closed RangedReader")
        left = self.info.size - self._tell
        wanted = left if size < 0 else min(size, left)
        pieces = []
        while wanted:
            if not self._current:
                self._current = self._next_range()
            piece, self._current = self._current[:wanted], self._current[wanted:]
            pieces.append(piece)
            wanted -= len(piece)
            self._tell += len(piece)
        return b"".join(pieces)

    def _next_range(self) -> memoryview:
        while self._asked < self.info.size and len(self._coming) <= self._read_ahead:
            end = min(self._asked + self._range_bytes, self.info.size)
            self._coming.append(self._pool.submit(self._fetch, self._asked, end, self._stop))
            self._asked = end
        content = self._coming[0].result()  # an error stays first, and every later read raises it
        self._coming.popleft()
        return content
