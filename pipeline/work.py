"""What a run has to do and how far it is: no Ray, so that `plan` and tests can ask too."""

import time
from collections import Counter
from dataclasses import dataclass, field

from encoder.checkpoint import describe_checkpoint
from pipeline.config import RunConfig
from pipeline.manifest import ModelFacts, make_fingerprint, pending_shards
from pipeline.resize import resolve_kernel
from pipeline.specs import list_shards
from pipeline.stage import RunPlan
from pipeline.storage import Storage, canonical_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run that is about to start: its plan and its shards."""

    plan: RunPlan
    total: int
    pending: list[str]  # URLs


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

    @property
    def remaining(self) -> int:
        """Shards that are neither published nor given up."""
        return self.total - self.already_done - self.done - self.lost - len(self.failed)


def prepare_work(config: RunConfig, storage: Storage) -> Work:
    """The plan of a run and what is left to do. Reads the checkpoint's digest and two listings.

    Raises ConfigError, CheckpointError, StorageError.
    """
    output = canonical_url(config.output.path)
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
