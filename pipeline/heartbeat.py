"""What Encoders tell of themselves, and what follows from it. No Ray, no torch."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.scaling import STARVED_BELOW, Load

K = TypeVar("K")  # whatever tells Encoders apart


@dataclass(slots=True, kw_only=True)
class LeaseState:
    """What an Encoder tells of an open lease."""

    attempt: str
    images: int = 0
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    encoding: int = 0  # packs that are with the encoder
    last_item: float = field(default_factory=time.monotonic)


@dataclass(slots=True, kw_only=True)
class StreamTimes:
    """Seconds of the streams that an Encoder has heard of, all of them together."""

    streamed_s: float = 0.0
    blocked_s: float = 0.0  # of them, waiting for this Encoder

    def add(self, earlier: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """None; a stream tells its seconds by phase, `earlier` is what it told before."""
        self.streamed_s += sum(seconds.values()) - sum(earlier.values())
        self.blocked_s += seconds["blocked"] - earlier.get("blocked", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderState:
    """A heartbeat. Ages are in seconds: clocks of two nodes are never compared."""

    busy_s: float  # spent encoding since the start
    encoding_for_s: float  # age of the forward pass that runs, 0 for none
    streams: StreamTimes
    leases: tuple[LeaseState, ...]
    idle_s: tuple[float, ...]  # for each lease, since when it waits for its stream


def idle_s_of(states: Mapping[K, EncoderState], attempt: str) -> float:
    """Seconds since the last item of this attempt; 0 where no Encoder tells of it."""
    for state in states.values():
        for lease, idle_s in zip(state.leases, state.idle_s, strict=True):
            if lease.attempt == attempt:
                return idle_s
    return 0.0


def _computed_s(state: EncoderState) -> float:
    """Seconds of passes, of the one that runs so far too."""
    return state.busy_s + state.encoding_for_s


def load_between(
    before: Mapping[K, EncoderState], now: Mapping[K, EncoderState], elapsed: float
) -> Load | None:
    """What happened between two rounds of heartbeats; None where they do not tell.

    Streams are heard of with each pack only, and then of all their time since the pack before. So
    their share is of the time that was heard of, not of `elapsed`. Encoders that compute all the
    time while no pack comes leave it open whether the streams wait.
    """
    busy, streamed, blocked = [], 0.0, 0.0
    for encoder, state in now.items():
        earlier = before.get(encoder)
        if earlier is None or not state.leases:
            continue
        busy.append((_computed_s(state) - _computed_s(earlier)) / elapsed)
        streamed += state.streams.streamed_s - earlier.streams.streamed_s
        blocked += state.streams.blocked_s - earlier.streams.blocked_s
    if not busy:
        return None
    busy_share = min(1.0, sum(busy) / len(busy))
    if not streamed and busy_share >= STARVED_BELOW:
        return None
    return Load(busy_share=busy_share, blocked_share=blocked / streamed if streamed else 0.0)
