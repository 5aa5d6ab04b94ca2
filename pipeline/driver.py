"""The driver: a loop over leases. It keeps no state that a listing of the output does not give."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from encoder.batch import PackMismatchError
from encoder.checkpoint import describe_checkpoint
from pipeline.actors import Encoder, Preprocessor, StreamLostError
from pipeline.config import RunConfig
from pipeline.errors import InvariantError, RejectionLimitError, ShardError, StorageError
from pipeline.manifest import ModelFacts, make_fingerprint, pending_shards
from pipeline.pools import Member, Pool
from pipeline.resize import resolve_kernel
from pipeline.specs import list_shards
from pipeline.stage import LeaseResult, RunPlan
from pipeline.storage import Storage, canonical_url
from pipeline.writer import Lease

log = logging.getLogger("embedmill")

_LEASES_PER_PREPROCESSOR = 2  # one that streams and one that follows without a gap
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that is about to start: its plan and its shards."""

    plan: RunPlan
    total: int
    pending: list[str]


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts of this run so far; what the display and the summary show."""

    total: int
    already_done: int
    done: int = 0
    lost: int = 0  # shards that another run published first
    read: int = 0
    embedded: int = 0
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # shard -> last error
    open_images: int = 0  # encoded in leases that are still open
    open_tokens: int = 0
    encoders: int = 0
    preprocessors: int = 0
    leases: int = 0
    started: float = field(default_factory=time.monotonic)


def prepare_work(config: RunConfig, storage: Storage) -> Work:
    """The plan of a run and what is left to do. Reads the checkpoint's digest and two listings.

    Raises ConfigError, CheckpointError, StorageError.
    """
    output = canonical_url(config.output.path).rstrip("/")
    shards = list_shards(config.input, storage)
    facts = describe_checkpoint(config.model.checkpoint, revision=config.model.revision)
    model = ModelFacts(
        checkpoint=config.model.checkpoint,
        revision=facts.revision,
        digest=facts.digest,
        patch_size=facts.config.patch_size,
        width=facts.config.hidden_size,
    )
    kernel = resolve_kernel(config.preprocess.resize_kernel)
    plan = RunPlan(
        config=config,
        output=output,
        model=model,
        fingerprint=make_fingerprint(config, model, kernel),
        kernel=kernel,
    )
    return Work(plan=plan, total=len(shards), pending=pending_shards(storage, output, shards))


def run_leases(work: Work, storage: Storage, show: Callable[[Progress], None]) -> Progress:
    """The counts at the end, when every pending shard is published or quarantined.

    `show` is called about once a second. Needs a connected Ray. Every actor is ended on the way
    out, whatever the reason.
    """
    loop = _LeaseLoop(work, storage)
    try:
        while loop.unfinished:
            loop.step()
            show(loop.progress)
    finally:
        loop.close()
    return loop.progress


class _LeaseLoop:
    """Queue, pools and open leases of one run."""

    def __init__(self, work: Work, storage: Storage) -> None:
        self._plan, self._storage = work.plan, storage
        self._queue = deque(work.pending)
        self._attempts: Counter[str] = Counter()  # only shards that failed before
        self._open: dict[Any, Lease] = {}  # by the reference of run_lease
        self.progress = Progress(total=work.total, already_done=work.total - len(work.pending))
        workers, packing = work.plan.config.workers, work.plan.config.packing
        self._encoders = Pool(
            "Encoder",
            self._make_encoder,
            size=max(1, min(workers.encoders.max, len(work.pending))),
            leases_each=packing.streams_per_encoder,
            needs=f"{workers.encoders.num_cpus:g} CPUs and {workers.encoders.num_gpus:g} GPUs",
        )
        self._preprocessors = Pool(
            "Preprocessor",
            self._make_preprocessor,
            size=max(1, min(workers.preprocessors.max, len(work.pending))),
            leases_each=_LEASES_PER_PREPROCESSOR,
            needs=f"{workers.preprocessors.num_cpus:g} CPUs",
        )

    @property
    def unfinished(self) -> bool:
        return bool(self._queue or self._open)

    def step(self) -> None:
        """None; one round: actors, leases out, results in."""
        timeout = self._plan.config.workers.start_timeout_s
        for pool in (self._encoders, self._preprocessors):
            pool.fill()
            pool.settle()
            pool.check_started(timeout)
        self._lease_out()
        waiting = list(self._open) or [
            m.start_ref for p in (self._encoders, self._preprocessors) for m in p.members
        ]
        done, _ = ray.wait(waiting, timeout=_POLL_S) if waiting else ([], [])
        for reference in done:
            if reference in self._open:
                self._finish(reference)
        if not waiting:
            time.sleep(_POLL_S / 10)  # every pool waits for its backoff
        self._observe()

    def close(self) -> None:
        self._encoders.close()
        self._preprocessors.close()

    def _make_encoder(self) -> Any:
        pool = self._plan.config.workers.encoders
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self._plan.config.device == "cpu" else {}
        return (
            ray.remote(Encoder)
            .options(
                num_cpus=pool.num_cpus,
                num_gpus=pool.num_gpus,
                max_restarts=0,
                max_task_retries=0,
                runtime_env={"env_vars": hidden},
            )
            .remote(self._plan)
        )

    def _make_preprocessor(self) -> Any:
        return (
            ray.remote(Preprocessor)
            .options(
                num_cpus=self._plan.config.workers.preprocessors.num_cpus,
                max_restarts=0,
                max_task_retries=0,
                # Ray leaves GPUs visible to actors without one; an accidental context costs 500 MB.
                runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}},
            )
            .remote(self._plan)
        )

    def _lease_out(self) -> None:
        while self._queue:
            encoder, preprocessor = self._encoders.free(), self._preprocessors.free()
            if encoder is None or preprocessor is None:
                return
            lease = Lease(url=self._queue.popleft())
            reference = encoder.handle.run_lease.remote(lease, preprocessor.handle)
            self._open[reference] = lease
            encoder.leases.add(lease.attempt)
            preprocessor.leases.add(lease.attempt)

    def _finish(self, reference: Any) -> None:
        lease = self._open.pop(reference)
        encoder = self._encoders.holder(lease.attempt)
        preprocessor = self._preprocessors.holder(lease.attempt)
        try:
            result: LeaseResult = ray.get(reference)
        except (InvariantError, PackMismatchError, RejectionLimitError):
            raise
        except (ShardError, StorageError) as error:
            self._retry(lease, str(error))
        except StreamLostError as error:
            self._retry(lease, str(error))
            self._lost(self._preprocessors, preprocessor, str(error))
        except RayActorError as error:
            self._retry(lease, str(error))
            self._lost(self._encoders, encoder, str(error))
        else:
            self._count(result)
        finally:
            for member in (encoder, preprocessor):
                if member is not None:
                    member.leases.discard(lease.attempt)

    def _lost(self, pool: Pool, member: Member | None, cause: str) -> None:
        if member is not None:
            pool.lose(member, cause)

    def _retry(self, lease: Lease, cause: str) -> None:
        self._attempts[lease.url] += 1
        if self._attempts[lease.url] < self._plan.config.limits.shard_attempts:
            log.warning("%s: tried again (%s)", lease.shard, cause)
            self._queue.append(lease.url)
            return
        log.error("%s: given up after %d tries (%s)", lease.shard, self._attempts[lease.url], cause)
        self.progress.failed[lease.shard] = cause

    def _count(self, result: LeaseResult) -> None:
        report, progress = result.report, self.progress
        self._encoders.worked()
        self._preprocessors.worked()
        if result.outcome == "lost":
            progress.lost += 1
            return
        progress.done += 1
        progress.read += report.read
        progress.embedded += report.embedded
        progress.tokens += result.tokens
        progress.rejected.update(report.rejected)
        self._check_share()

    def _check_share(self) -> None:
        limits, progress = self._plan.config.limits, self.progress
        rejected = progress.rejected.total()
        if progress.read < limits.min_images_for_share:
            return
        if rejected > limits.max_reject_share * progress.read:
            reasons = ", ".join(f"{name} {n}" for name, n in progress.rejected.most_common(3))
            raise RejectionLimitError(
                f"{rejected} of {progress.read} images were rejected ({reasons}), more than "
                f"limits.max_reject_share = {limits.max_reject_share:g}. Look at rejects/ in the "
                f"output; what is done stays."
            )

    def _observe(self) -> None:
        progress = self.progress
        progress.encoders = sum(m.ready for m in self._encoders.members)
        progress.preprocessors = sum(m.ready for m in self._preprocessors.members)
        progress.leases = len(self._open)
        images = tokens = 0
        references = [m.handle.progress.remote() for m in self._encoders.members if m.ready]
        done, _ = (
            ray.wait(references, num_returns=len(references), timeout=0.5)
            if references
            else ([], [])
        )
        for reference in done:
            try:
                states, _busy = ray.get(reference)
            except RayError:  # it died; its leases say so too
                continue
            images += sum(state.images for state in states)
            tokens += sum(state.tokens for state in states)
        progress.open_images, progress.open_tokens = images, tokens
