"""What Encoders tell of themselves, and what follows from it. No Ray, no torch."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.scaling import Load

K = TypeVar("K")  # whatever tells Encoders apart


@dataclass(slots=True, kw_only=True)
class LeaseState:
    """What an Encoder tells of an open lease."""

    attempt: str
    images: int = 0
    tokens: int = 0
    encoding: int = 0  # packs that are with the encoder
    blocked_s: float = 0.0  # the stream waited for this Encoder
    last_item: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderState:
    """A heartbeat. Ages are in seconds: clocks of two nodes are never compared."""

    busy_s: float  # spent encoding since the start
    encoding_for_s: float  # age of the forward pass that runs, 0 for none
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
    """What happened between two rounds of heartbeats, where both saw Encoders with open leases."""
    busy, blocked, streams = [], 0.0, 0
    for encoder, state in now.items():
        earlier = before.get(encoder)
        if earlier is None or not state.leases:
            continue
        busy.append((_computed_s(state) - _computed_s(earlier)) / elapsed)
        known = {lease.attempt: lease.blocked_s for lease in earlier.leases}
        for lease in state.leases:
            if lease.images:
                streams += 1
                blocked += max(0.0, lease.blocked_s - known.get(lease.attempt, 0.0)) / elapsed
    if not busy:
        return None
    return Load(
        busy_share=min(1.0, sum(busy) / len(busy)),
        blocked_share=min(1.0, blocked / max(1, streams)),
    )
