"""How fast a run is, and when it will be done."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import takewhile

from pipeline.work import Progress

_WINDOW_S = 60.0
_STEP_S = 0.5  # between points; the driver may look a thousand times a second
_SETTLED_S = 10.0  # pools must have had their size for so long that it shows in the rate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    at: float
    images: int
    tokens: int
    pools: tuple[int, int]


class Pace:
    """Rates since the pools have had their present size, over a minute at most.

    So the time left follows a pool that grows or shrinks within seconds.
    """

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def add(self, progress: Progress, now: float | None = None) -> None:
        """None; notes how far the run is, `now` in seconds of time.monotonic()."""
        now = time.monotonic() if now is None else now
        pools = (progress.encoders, progress.preprocessors)
        if self._points:
            last = self._points[-1]
            if last.pools == pools and now - last.at < _STEP_S:
                return
        point = _Point(
            at=now,
            images=progress.images,
            tokens=progress.tokens + progress.open_tokens,
            pools=pools,
        )
        self._points.append(point)
        while point.at - self._points[0].at > _WINDOW_S:
            self._points.popleft()

    def per_second(self) -> tuple[float, float]:
        """(images, tokens) per second."""
        last = self._points[-1]
        first = list(takewhile(lambda p: p.pools == last.pools, reversed(self._points)))[-1]
        if last.at - first.at < _SETTLED_S:
            first = self._points[0]
        seconds = last.at - first.at
        if not seconds:
            return 0.0, 0.0
        # A lost lease takes its images back.
        images, tokens = last.images - first.images, last.tokens - first.tokens
        return max(0.0, images / seconds), max(0.0, tokens / seconds)

    def seconds_left(self, progress: Progress) -> float | None:
        """Seconds to the end at this rate, with shards like those that are done; None: unknown."""
        rate, _ = self.per_second()
        if not progress.done or not rate:
            return None
        images_left = progress.read / progress.done * progress.remaining - progress.open_read
        return max(0.0, images_left) / rate
