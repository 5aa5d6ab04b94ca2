"""What a run has to do and how far it is: no Ray, so that `plan` and tests can ask too."""

import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any

from encoder.checkpoint import describe_checkpoint
from encoder.config import CheckpointError
from pipeline.checkpoint_cache import local_checkpoint
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.heartbeat import LeaseState
from pipeline.manifest import (
    Committed,
    ModelFacts,
    list_committed,
    make_fingerprint,
    pending_shards,
)
from pipeline.output_size import check_output_size
from pipeline.records import ShardReport
from pipeline.resize import resolve_kernel
from pipeline.scaling import Load
from pipeline.specs import list_shards
from pipeline.stage import RunPlan, wanted_output
from pipeline.storage import Storage, canonical_url
from pipeline.urls import without_secrets
from pipeline.writer import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that is about to start: its plan and its shards."""

    plan: RunPlan
    total: int
    pending: list[str]  # URLs
    committed: Committed


@dataclass(slots=True, kw_only=True)
class OpenLease:
    """A shard in work, as its Encoder told last."""

    lease: Lease
    images: int = 0  # encoded so far
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    began: float | None = None  # when it was first heard of its images

    def hear(self, state: LeaseState) -> None:
        self.images, self.tokens, self.rejected = state.images, state.tokens, state.rejected
        if self.began is None and (state.images or state.encoding or state.rejected):
            self.began = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since its images began to come; 0 where it waits for its Preprocessor."""
        return 0.0 if self.began is None else time.monotonic() - self.began


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts of this run so far; what the display and the summary show."""

    total: int
    already_done: int
    token_budget: int  # of a forward pass
    done: int = 0
    lost: int = 0  # shards that another run published first
    read: int = 0
    embedded: int = 0
    tokens: int = 0
    passes: float = 0.0  # forward passes that held them
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, of all actors together
    rejected: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # shard -> last error
    lease_s: float = 0.0  # that the shards took which are done, together
    open: dict[Any, OpenLease] = field(default_factory=dict)  # by the reference of run_lease
    encoders: int = 0
    preprocessors: int = 0
    load: Load | None = None  # as it was measured last
    started: float = field(default_factory=time.monotonic)

    def add(self, report: ShardReport) -> None:
        """None; counts a shard that was published."""
        self.done += 1
        self.read += report.read
        self.embedded += report.embedded
        self.tokens += report.tokens
        self.passes += report.passes
        self.bytes_read += report.bytes_read
        for phase, seconds in report.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.rejected.update(report.rejected)

    @property
    def leases(self) -> int:
        return len(self.open)

    @property
    def open_images(self) -> int:
        """Encoded in leases that are still open."""
        return sum(lease.images for lease in self.open.values())

    @property
    def open_tokens(self) -> int:
        return sum(lease.tokens for lease in self.open.values())

    @property
    def open_rejected(self) -> Counter[str]:
        rejected: Counter[str] = Counter()
        for lease in self.open.values():
            rejected.update(lease.rejected)
        return rejected

    @property
    def oldest(self) -> list[OpenLease]:
        """Up to three open leases, the oldest first."""
        return nlargest(3, self.open.values(), key=lambda lease: lease.age_s)

    @property
    def open_read(self) -> int:
        """Images of open leases that are embedded or rejected."""
        return self.open_images + self.open_rejected.total()

    @property
    def images(self) -> int:
        """All that are embedded or rejected so far."""
        return self.read + self.open_read

    @property
    def fill(self) -> float:
        """How full the forward passes of finished shards were, of 1."""
        return self.tokens / (self.passes * self.token_budget) if self.passes else 0.0

    @property
    def remaining(self) -> int:
        """Shards that are neither published nor given up."""
        return self.total - self.already_done - self.done - self.lost - len(self.failed)


def _model_facts(config: RunConfig, storage: Storage) -> ModelFacts:
    model, budget = config.model, config.packing.token_budget
    try:
        described = describe_checkpoint(
            local_checkpoint(model.checkpoint, storage),
            revision=model.revision,
            prefix=model.prefix,
        )
    except CheckpointError as error:
        raise ConfigError(f"model.checkpoint: {error}") from error
    try:
        readout = described.readout(wanted_output(config.output))
    except CheckpointError as error:
        raise ConfigError(f"output and model.checkpoint contradict: {error}") from error
    try:
        geometry = described.geometry(max_num_patches=config.preprocess.max_num_patches)
    except CheckpointError as error:
        raise ConfigError(f"preprocess and model.checkpoint contradict: {error}") from error
    if geometry.max_num_patches > budget:
        raise ConfigError(
            f"packing.token_budget must hold an image of {geometry.max_num_patches} patches, as "
            f"{model.checkpoint} makes them, got {budget}; raise it, or lower "
            f"preprocess.max_num_patches"
        )
    return ModelFacts(
        checkpoint=without_secrets(model.checkpoint),
        revision=described.revision,
        digest=described.digest,
        geometry=geometry,
        readout=readout,
    )


def prepare_work(config: RunConfig, storage: Storage) -> Work:
    """The plan of a run and what is left to do, from the checkpoint's digest and two listings.

    Raises ConfigError, CheckpointError, StorageError.
    """
    output = canonical_url(config.output.path)
    shards = list_shards(config.input, storage)
    model = _model_facts(config, storage)
    kernel = resolve_kernel(config.preprocess.resize_kernel)
    plan = RunPlan(
        config=config,
        output=output,
        model=model,
        fingerprint=make_fingerprint(config, model, kernel),
        kernel=kernel,
    )
    committed = list_committed(storage, output)
    pending = pending_shards(committed.numbers, shards)
    if pending:
        check_output_size(pending[0], config, model, storage)
    return Work(plan=plan, total=len(shards), pending=pending, committed=committed)
