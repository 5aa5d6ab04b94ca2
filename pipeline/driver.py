"""The driver: a loop over leases. It keeps no state that a listing of the output does not give."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from encoder.batch import PackMismatchError
from pipeline.actors import DeviceLostError, StreamLostError
from pipeline.clean import remove_stale_rejects
from pipeline.cluster import draining_nodes
from pipeline.errors import (
    InvariantError,
    OutputTooLargeError,
    RejectionLimitError,
    ShardError,
    StorageError,
)
from pipeline.manifest import failed_url
from pipeline.observer import Observer
from pipeline.pools import Member, Pool
from pipeline.quarantine import (
    describe_failure,
    failed_urls,
    remove_failure,
    write_failure,
)
from pipeline.reject_limits import RejectShare
from pipeline.scaling import encoders_wanted
from pipeline.stage import LeaseResult
from pipeline.storage import Storage
from pipeline.work import OpenLease, Progress, Work
from pipeline.workers import new_encoder, new_preprocessor
from pipeline.writer import Lease

log = logging.getLogger("embedmill")

_LEASES_PER_PREPROCESSOR = 2  # one that streams and one that follows without a gap
_POLL_S = 0.5
# A lease lost with its actor or node is not the shard's fault; still, one that is lost this often
# takes its workers down.
_MAX_LOSSES = 10


def run_leases(
    work: Work, storage: Storage, watchers: Iterable[Callable[[Progress], None]]
) -> Progress:
    """The counts at the end, when every pending shard is published or quarantined.

    The watchers are called about twice a second, and at the end. Needs a connected Ray. Every
    actor is ended on the way out, whatever the reason.
    """
    loop = _LeaseLoop(work, storage)
    try:
        while loop.progress.remaining:
            loop.step()
            for watch in watchers:
                watch(loop.progress)
    finally:
        loop.close()
    remove_stale_rejects(storage, work.plan.output, loop.lost_attempts)
    return loop.progress


class _LeaseLoop:
    """Queue, pools and open leases of one run."""

    def __init__(self, work: Work, storage: Storage) -> None:
        self._plan = plan = work.plan
        self._queue = deque(work.pending)
        self._failures: Counter[str] = Counter()  # by URL, only shards that failed before
        self._losses: Counter[str] = Counter()
        self.lost_attempts: set[str] = set()  # may have left rejects
        self._reject_share = RejectShare(plan.config.limits)
        committed = work.committed
        self._reject_share.seed(storage, committed.sample, len(committed.numbers))
        self._storage = storage
        self._quarantined = failed_urls(storage, plan.output)
        self.progress = Progress(
            total=work.total,
            already_done=work.total - len(work.pending),
            token_budget=plan.config.packing.token_budget,
        )
        workers, packing = plan.config.workers, plan.config.packing
        self._encoders = Pool(
            "Encoder",
            lambda: new_encoder(plan),
            leases_each=packing.streams_per_encoder,
            needs=f"{workers.encoders.num_cpus:g} CPUs and {workers.encoders.num_gpus:g} GPUs",
        )
        self._preprocessors = Pool(
            "Preprocessor",
            lambda: new_preprocessor(plan, self._node_in_need()),
            leases_each=_LEASES_PER_PREPROCESSOR,
            needs=f"{workers.preprocessors.num_cpus:g} CPUs",
        )
        self._pools = self._encoders, self._preprocessors
        self._num_encoders = 0
        self._observer = Observer(plan.config, self._encoders, self._preprocessors)
        self._observed_at = 0.0

    def step(self) -> None:
        """None; one round: actors, leases out, results in."""
        self._keep_pools()
        self._lease_out()
        waiting = [*self.progress.open, *(start for pool in self._pools for start in pool.starting)]
        if not waiting:
            time.sleep(_POLL_S)  # every pool waits for its backoff
        elif ray.wait(waiting, timeout=_POLL_S)[0]:
            done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)  # all that are ready
            for reference in done:
                if reference in self.progress.open:
                    self._finish(reference)
        if time.monotonic() - self._observed_at >= _POLL_S:
            self._observed_at = time.monotonic()
            self._observer.observe(self.progress)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def _keep_pools(self) -> None:
        workers, remaining = self._plan.config.workers, self.progress.remaining
        low, high = workers.encoders.min, workers.encoders.max
        leasable = len(self._queue) + sum(len(m.leases) > 0 for m in self._encoders.members)
        wanted = encoders_wanted(low=low, high=high, remaining=leasable)
        if wanted != self._num_encoders:
            log.info("%d to %d Encoders: %d shards are left", self._num_encoders, wanted, remaining)
            self._num_encoders = wanted
        self._encoders.resize(wanted)
        self._preprocessors.resize(min(self._observer.num_preprocessors, remaining))
        draining = draining_nodes()
        for pool in self._pools:
            pool.retire_on(draining)
            pool.settle()
            pool.check_started(workers.start_timeout_s)

    def _node_in_need(self) -> str | None:
        """The node whose Encoders have the fewest Preprocessors beside them: packs stay local."""
        nodes = [member.node for member in self._encoders.ready]
        beside = Counter(member.node for member in self._preprocessors.ready)
        return min(nodes, key=lambda node: beside[node] / nodes.count(node), default=None)

    def _lease_out(self) -> None:
        while self._queue:
            encoder = self._encoders.free()
            preprocessor = self._preprocessors.free(near=encoder.node if encoder else None)
            if encoder is None or preprocessor is None:
                return
            url = self._queue.popleft()
            lease = Lease(url=url, careful=self._losses[url] > 0)
            reference = encoder.handle.run_lease.remote(lease, preprocessor.handle)
            self.progress.open[reference] = OpenLease(lease=lease)
            encoder.leases.add(lease.attempt)
            preprocessor.leases.add(lease.attempt)

    def _finish(self, reference: Any) -> None:
        open_lease = self.progress.open.pop(reference)
        lease = open_lease.lease
        encoder = self._encoders.holder(lease.attempt)
        preprocessor = self._preprocessors.holder(lease.attempt)
        try:
            result: LeaseResult = ray.get(reference)
        except (InvariantError, PackMismatchError, RejectionLimitError):
            raise
        except (ShardError, StorageError) as error:
            own = _own_error(error)
            if self._ends_the_run(own):
                raise own from error
            self._failed(lease, own)
        except StreamLostError as error:
            self._was_lost(lease, _own_error(error), self._preprocessors, preprocessor)
        except DeviceLostError as error:
            self._was_lost(lease, _own_error(error), self._encoders, encoder)
        except RayTaskError:
            raise  # a bug in an actor's own code
        except RayError as error:  # it or its node died, or was killed for its memory
            self._was_lost(lease, error, self._encoders, encoder)
        else:
            self.progress.lease_s += open_lease.age_s
            self._count(lease, result)
        finally:
            for member in (encoder, preprocessor):
                if member is not None:
                    member.leases.discard(lease.attempt)

    def _ends_the_run(self, error: Exception) -> bool:
        """True where the output takes nothing more: every other shard would fail with it."""
        return (
            isinstance(error, StorageError)
            and error.kind in ("full", "denied")
            and error.url.startswith(f"{self._plan.output}/")
        )

    def _was_lost(self, lease: Lease, error: Exception, pool: Pool, member: Member | None) -> None:
        if member is not None:
            pool.lose(member, str(error))
        self._losses[lease.url] += 1
        self.lost_attempts.add(lease.attempt)
        if self._losses[lease.url] < _MAX_LOSSES:
            self._queue.append(lease.url)
        else:
            self._give_up(lease, error)

    def _failed(self, lease: Lease, error: Exception) -> None:
        self._failures[lease.url] += 1
        self.lost_attempts.add(lease.attempt)
        attempts = self._plan.config.limits.shard_attempts
        if self._failures[lease.url] < attempts and not isinstance(error, OutputTooLargeError):
            log.warning("%s: tried again (%s)", lease.shard, error)
            self._queue.append(lease.url)
        else:
            self._give_up(lease, error)

    def _give_up(self, lease: Lease, error: Exception) -> None:
        attempts = self._failures[lease.url] + self._losses[lease.url]
        failure = describe_failure(lease.shard, error, attempts)
        log.error("%s: given up after %d attempts (%s)", lease.shard, attempts, failure.message)
        self.progress.failed[lease.shard] = failure.message
        write_failure(self._storage, self._plan.output, failure)

    def _count(self, lease: Lease, result: LeaseResult) -> None:
        for pool in self._pools:
            pool.worked()
        if failed_url(self._plan.output, lease.shard) in self._quarantined:
            remove_failure(self._storage, self._plan.output, lease.shard)
        if result.outcome == "lost":
            self.progress.lost += 1
            return
        self.progress.add(result.report)
        self._reject_share.add(result.report)


def _own_error(error: Exception) -> Exception:
    """The error as it was raised; Ray hands it over with a remote traceback for its text."""
    return error.cause if isinstance(error, RayTaskError) else error
