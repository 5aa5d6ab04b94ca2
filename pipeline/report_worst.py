"""The shards of a run that are worth a look: the worst by one measure or another."""

import heapq
from dataclasses import dataclass

_LISTED = 8  # in each list


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLine:
    """One shard, as the lists of the worst show it."""

    shard: str
    read: int
    rejected: int
    seconds: float  # from the beginning of its attempt until its rows were whole
    fill: float | None  # of its passes; None where its footer does not tell
    complete: bool

    @property
    def reject_share(self) -> float:
        return self.rejected / self.read if self.read else 0.0

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.read / self.seconds if self.seconds > 0 else 0.0


class Worst:
    """Keeps the lines with the largest ranks."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ShardLine]] = []
        self._count = 0

    def offer(self, rank: float, line: ShardLine) -> None:
        self._count += 1
        item = (rank, self._count, line)
        if len(self._heap) < _LISTED:
            heapq.heappush(self._heap, item)
        else:
            heapq.heappushpop(self._heap, item)

    @property
    def lines(self) -> list[ShardLine]:
        """The worst first."""
        return [line for _, _, line in sorted(self._heap, reverse=True)]
