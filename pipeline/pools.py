"""Pools of actors: made, watched until they are ready, replaced with backoff when they die."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from pipeline.actors import Place
from pipeline.errors import StageError

log = logging.getLogger("embedmill")

_MAX_BACKOFF_S = 10.0
# Deaths in a row, without a lease finished in between, after which a pool is in a crash loop. Spot
# nodes can take a dozen in a minute; a member whose own code fails to start counts for five.
_CRASH_LOOP = 20
_START_FAILURE = 5


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    handle: ActorHandle[Any]
    start_ref: Any
    asked_at: float
    place: Place | None = None  # known when it has started
    retiring: bool = False  # gets no new leases, ends with its last one
    leases: set[str] = field(default_factory=set)  # attempts

    @property
    def node(self) -> str | None:
        return None if self.place is None else self.place.node


class Pool:
    """Actors of one kind. `make` creates one; `free` finds a place for a lease."""

    def __init__(
        self, name: str, make: Callable[[], ActorHandle[Any]], *, leases_each: int, needs: str
    ) -> None:
        self.name, self._make, self._leases_each, self._needs = name, make, leases_each, needs
        self.members: list[Member] = []
        self._deaths = 0
        self._not_before = 0.0

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.place is not None]

    @property
    def starting(self) -> list[Any]:
        """The references of members' starts that have not been settled."""
        return [member.start_ref for member in self.members if member.place is None]

    def resize(self, size: int) -> None:
        """None; creates what is missing unless a backoff is running, retires what is too much."""
        staying = [member for member in self.members if not member.retiring]
        for member in sorted(staying, key=_rank_to_leave)[: max(0, len(staying) - size)]:
            member.retiring = True
        for member in [m for m in self.members if m.retiring and not m.leases]:
            self._end(member)
        if time.monotonic() < self._not_before:
            return
        for _ in range(size - len(staying)):
            handle = self._make()
            self.members.append(
                Member(handle=handle, start_ref=handle.start.remote(), asked_at=time.monotonic())
            )

    def settle(self) -> None:
        """None; notes members that have started, drops those that failed to.

        Raises StageError where the pool fails again and again.
        """
        for member in [m for m in self.members if m.place is None]:
            done, _ = ray.wait([member.start_ref], timeout=0)
            if not done:
                continue
            try:
                member.place = ray.get(member.start_ref)
            except RayTaskError as error:  # its own code failed: the model does not load there
                cause = f"{type(error.cause).__name__}: {error.cause}"
                self.lose(member, cause, weight=_START_FAILURE)
            except RayError as error:
                self.lose(member, str(error))
            else:
                log.info("%s ready: %s", self.name, member.place)

    def retire_on(self, nodes: Iterable[str]) -> None:
        """None; members on these nodes get no new leases: the nodes are about to go."""
        nodes = set(nodes)
        for member in self.ready:
            if member.node in nodes and not member.retiring:
                member.retiring = True
                log.info("%s gets no new leases, its node drains: %s", self.name, member.place)

    def free(self, near: str | None = None) -> Member | None:
        """The ready member with room and the fewest leases; of equals, one on the node `near`."""
        room = [m for m in self.ready if not m.retiring and len(m.leases) < self._leases_each]
        return min(room, key=lambda m: (len(m.leases), m.node != near), default=None)

    def holder(self, attempt: str) -> Member | None:
        return next((m for m in self.members if attempt in m.leases), None)

    def lose(self, member: Member, cause: str, *, weight: int = 1) -> None:
        """None; a member is gone. Raises StageError where the pool dies again and again."""
        if member not in self.members:
            return
        self._end(member)
        self._deaths += weight
        cause = " ".join(cause.split()) or "unknown"
        if self._deaths >= _CRASH_LOOP:
            raise StageError(
                f"{self.name} actors die again and again and no shard gets done; the last cause: "
                f"{cause}"
            )
        backoff = min(_MAX_BACKOFF_S, 0.25 * 2 ** (self._deaths // 2))
        self._not_before = time.monotonic() + backoff
        log.warning("%s lost, replaced in %.1f s: %s", self.name, backoff, cause[:200])

    def worked(self) -> None:
        """None; a lease finished, so this is no crash loop."""
        self._deaths = 0

    def check_started(self, timeout_s: float) -> None:
        """None; raises StageError where no member found a place in time."""
        if not self.members or self.ready:
            return
        if time.monotonic() - min(m.asked_at for m in self.members) > timeout_s:
            raise StageError(
                f"no {self.name} could start within workers.start_timeout_s = {timeout_s:g} s: "
                f"each needs {self._needs}; the cluster has "
                f"{_resources(ray.cluster_resources())}, of which "
                f"{_resources(ray.available_resources())} are free"
            )

    def close(self) -> None:
        for member in list(self.members):
            self._end(member)

    def _end(self, member: Member) -> None:
        self.members.remove(member)
        ray.kill(member.handle)


def _rank_to_leave(member: Member) -> tuple[bool, int]:
    """Members that have not started leave first, then those with the fewest leases."""
    return member.place is not None, len(member.leases)


def _resources(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
