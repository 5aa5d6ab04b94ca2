"""The driver's eyes: asks the Encoders how they are, ends what stalls, sizes what waits."""

import logging
import time

import ray
from ray.exceptions import RayError

from pipeline.config import RunConfig
from pipeline.heartbeat import EncoderState, idle_s_of, load_between
from pipeline.pools import Member, Pool
from pipeline.scaling import PreprocessorScaler
from pipeline.work import Progress

log = logging.getLogger("embedmill")

_ANSWER_WITHIN_S = 0.5
_SCALE_EVERY_S = 3.0


class Observer:
    """What is known of a run's actors, and how many Preprocessors it should have."""

    def __init__(self, config: RunConfig, encoders: Pool, preprocessors: Pool) -> None:
        self._stall_timeout_s = config.limits.stall_timeout_s
        self._encoders, self._preprocessors = encoders, preprocessors
        pool = config.workers.preprocessors
        self.num_preprocessors = pool.min
        self._scaler = PreprocessorScaler(low=pool.min, high=pool.max)
        self._states: dict[Member, EncoderState] = {}  # when the load was measured last
        self._measured_at = time.monotonic()

    def observe(self, progress: Progress) -> None:
        """None; writes what the actors do into `progress`, and acts on it."""
        states = self._ask_encoders()
        progress.encoders = len(self._encoders.ready)
        progress.preprocessors = len(self._preprocessors.ready)
        _tell(progress, states)
        for member, state in states.items():
            self._end_stalled(member, state)
        if time.monotonic() - self._measured_at >= _SCALE_EVERY_S:
            self._scale(progress, states)

    def _ask_encoders(self) -> dict[Member, EncoderState]:
        asked = {m.handle.heartbeat.remote(): m for m in self._encoders.ready}
        if not asked:
            return {}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_WITHIN_S)
        states = {}
        for reference in done:
            try:
                states[asked[reference]] = ray.get(reference)
            except RayError:
                continue  # it died; run_lease says so too, and that is where it is handled
        return states

    def _end_stalled(self, member: Member, state: EncoderState) -> None:
        """Kills the actor behind a stall; its leases fail with it and go back to the queue."""
        limit = self._stall_timeout_s
        if state.encoding_for_s > limit:
            log.error("a forward pass has run for %.0f s: its Encoder hangs", state.encoding_for_s)
            ray.kill(member.handle)
            return
        for lease, idle_s in zip(state.leases, state.idle_s, strict=True):
            preprocessor = self._preprocessors.holder(lease.attempt)
            if idle_s <= limit or preprocessor is None:
                continue
            others = preprocessor.leases - {lease.attempt}
            if any(idle_s_of(self._states, attempt) <= limit for attempt in others):
                continue  # it waits behind a stream of the same Preprocessor that moves
            log.error("no pack came from a Preprocessor for %.0f s: it hangs", idle_s)
            ray.kill(preprocessor.handle)

    def _scale(self, progress: Progress, states: dict[Member, EncoderState]) -> None:
        elapsed = time.monotonic() - self._measured_at
        before, self._states, self._measured_at = self._states, states, time.monotonic()
        progress.load = load = load_between(before, states, elapsed)
        if load is None:
            return  # nothing to compare
        ready = self._preprocessors.ready
        size = sum(not member.retiring for member in ready)
        decision = self._scaler.decide(
            size,
            load,
            useful=progress.remaining,
            may_grow=size == self.num_preprocessors,  # there may be no place for more, for long
            may_shrink=size == len(ready),
        )
        if decision is not None:
            self.num_preprocessors = decision.size
            log.info("%s", decision.reason)


def _tell(progress: Progress, states: dict[Member, EncoderState]) -> None:
    told = {state.attempt: state for encoder in states.values() for state in encoder.leases}
    for open_lease in progress.open.values():
        state = told.get(open_lease.lease.attempt)
        if state is not None:
            open_lease.hear(state)
