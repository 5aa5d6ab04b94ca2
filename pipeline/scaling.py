"""How many actors a run wants: pure decisions from measured waits, with their reasons.

Encoders follow the shards that are left. Preprocessors follow the waits: Encoders that starve ask
for more; fewer are kept where streams wait so long that fewer could do the same work. Both are
bounded by the configuration.
"""

from dataclasses import dataclass

# A decision needs this many observations in a row that agree, so that one slow shard moves nothing.
_AGREEING = 2
STARVED_BELOW = 0.8  # share of the time that Encoders with open leases compute
# A smaller pool must be able to do what the pool does now in this share of its time: with less
# room, it would starve the Encoders, grow again, and so on.
_ROOM = 0.8
# Where streams wait longer than this share of their time, more of them do not help.
_BLOCKED_ABOVE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was measured since the last observation, as means over the actors at work."""

    busy_share: float  # of Encoders
    blocked_share: float  # of streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    size: int
    reason: str


def encoders_wanted(*, low: int, high: int, remaining: int) -> int:
    """How many Encoders are worth having: at most one for each shard that is left."""
    return min(high, max(low, remaining), remaining)


class PreprocessorScaler:
    """Decides the size of the Preprocessor pool; remembers what it saw last."""

    def __init__(self, *, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._agreeing = 0  # positive: that many times starved; negative: blocked

    def decide(
        self,
        size: int,
        load: Load,
        *,
        useful: int,
        may_grow: bool = True,
        may_shrink: bool = True,
    ) -> Decision | None:
        """A new size and why, or None where the pool stays as it is.

        `size` is that of the pool at work, `useful` how many could find work at all: one for each
        shard that is left. While members that were asked for have not started, the pool may not
        grow further; while members that were too many still end their leases, not shrink.
        """
        fewer = min(size, max(self._low, size - max(1, size // 4)))
        enough = size * (1 - load.blocked_share) <= _ROOM * fewer
        starved = load.busy_share < STARVED_BELOW and load.blocked_share < _BLOCKED_ABOVE
        self._observe(shrinks=may_shrink and fewer < size and enough, grows=may_grow and starved)
        share = f"Encoders compute {load.busy_share:.0%}, streams wait {load.blocked_share:.0%}"
        if self._agreeing >= _AGREEING:
            most = min(self._high, useful)
            return self._move(size, max(size, min(most, size + max(1, size // 2))), share)
        if self._agreeing <= -_AGREEING:
            return self._move(size, fewer, share)
        return None

    def _observe(self, *, shrinks: bool, grows: bool) -> None:
        if shrinks:
            self._agreeing = min(self._agreeing, 0) - 1
        elif grows:
            self._agreeing = max(self._agreeing, 0) + 1
        else:
            self._agreeing = 0

    def _move(self, size: int, target: int, share: str) -> Decision | None:
        if target == size:
            return None
        self._agreeing = 0
        return Decision(size=target, reason=f"{size} to {target} Preprocessors: {share}")
