"""Pools of actors: made, watched until they are ready, replaced with backoff when they die."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from pipeline.errors import StageError

log = logging.getLogger("embedmill")

_MAX_BACKOFF_S = 30.0
# Deaths in a row, without a lease finished in between, after which a pool is in a crash loop.
_CRASH_LOOP = 3


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    handle: ActorHandle[Any]
    start_ref: Any
    asked_at: float
    ready: bool = False
    leases: set[str] = field(default_factory=set)  # attempts


class Pool:
    """Actors of one kind. `make` creates one; the driver asks `free` for a place for a lease."""

    def __init__(
        self,
        name: str,
        make: Callable[[], ActorHandle[Any]],
        *,
        size: int,
        leases_each: int,
        needs: str,
    ) -> None:
        self.name, self._make, self._leases_each, self._needs = name, make, leases_each, needs
        self.size = size
        self.members: list[Member] = []
        self._deaths = 0
        self._not_before = 0.0
        self._last_cause = ""

    def fill(self) -> None:
        """None; creates what is missing, unless a backoff is running."""
        if time.monotonic() < self._not_before:
            return
        while len(self.members) < self.size:
            handle = self._make()
            self.members.append(
                Member(handle=handle, start_ref=handle.start.remote(), asked_at=time.monotonic())
            )

    def settle(self) -> None:
        """None; notes members that became ready, drops those that failed to start.

        Raises StageError where the pool fails again and again.
        """
        for member in [m for m in self.members if not m.ready]:
            done, _ = ray.wait([member.start_ref], timeout=0)
            if not done:
                continue
            try:
                described = ray.get(member.start_ref)
            except RayTaskError as error:  # its own code failed: the model does not load there
                self.lose(member, f"{type(error.cause).__name__}: {error.cause}")
            except RayActorError as error:
                self.lose(member, str(error))
            else:
                member.ready = True
                log.info("%s ready: %s", self.name, described)

    def free(self) -> Member | None:
        """The ready member with the fewest leases and room for one more."""
        room = [m for m in self.members if m.ready and len(m.leases) < self._leases_each]
        return min(room, key=lambda member: len(member.leases), default=None)

    def holder(self, attempt: str) -> Member | None:
        return next((m for m in self.members if attempt in m.leases), None)

    def lose(self, member: Member, cause: str) -> None:
        """None; a member is gone. Raises StageError where the pool dies again and again."""
        if member not in self.members:
            return
        self.members.remove(member)
        ray.kill(member.handle)
        self._deaths += 1
        self._last_cause = " ".join(cause.split()) or "unknown"
        backoff = min(_MAX_BACKOFF_S, 0.5 * 2 ** (self._deaths - 1))
        self._not_before = time.monotonic() + backoff
        log.warning("%s died (%s); replaced in %.1f s", self.name, self._last_cause, backoff)
        if self._deaths >= _CRASH_LOOP + self.size:
            raise StageError(
                f"{self.name} actors die again and again without finishing a shard "
                f"({self._deaths} times); the last cause: {self._last_cause}"
            )

    def worked(self) -> None:
        """None; a lease finished, so this is no crash loop."""
        self._deaths = 0

    def check_started(self, timeout_s: float) -> None:
        """None; raises StageError where no member found a place in time."""
        waiting = [m for m in self.members if not m.ready]
        if not waiting or any(m.ready for m in self.members):
            return
        waited = time.monotonic() - min(m.asked_at for m in waiting)
        if waited > timeout_s:
            raise StageError(
                f"no {self.name} could start within workers.start_timeout_s = {timeout_s:g} s: "
                f"each needs {self._needs}; the cluster has "
                f"{_resources(ray.cluster_resources())}, of which "
                f"{_resources(ray.available_resources())} are free"
            )

    def close(self) -> None:
        for member in self.members:
            ray.kill(member.handle)
        self.members = []


def _resources(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
