"""Errors, by who can mend them and what the driver must do.

EmbedmillError
  ConfigError          the user: a field, a combination, a shard specification: exit 2
  OutputError          the user: the output folder belongs to another run: exit 2
  SampleError          the data: one image is unusable; a Rejection, the run goes on
  ShardError           the data: a tar is truncated, corrupt or changed; the shard fails, is
                       retried, then quarantined
  StorageError         the world: `transient` is retried with backoff, else the shard fails
  RejectionLimitError  the data, or a wrong setting: too much is rejected: exit 3
  StageError           the cluster: actors cannot start or die in a loop: exit 3
  InvariantError       us: our own accounting failed, never skipped: exit 3

The encoder's own errors (encoder.config.CheckpointError: exit 2, encoder.batch.PackMismatchError:
an invariant) are ValueErrors of that library. All of them survive pickling: Ray moves them.
"""

from typing import Literal

from pipeline.records import RejectReason

StorageKind = Literal["transient", "not_found", "denied", "changed", "full", "unsupported", "other"]


class EmbedmillError(Exception):
    """The base of all errors that embedmill raises on purpose."""


class ConfigError(EmbedmillError):
    pass


class OutputError(EmbedmillError):
    pass


class SampleError(EmbedmillError):
    """One image cannot be embedded, for a reason from the closed set."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


class ShardError(EmbedmillError):
    """One shard cannot be read whole; nothing of it is published."""

    def __init__(self, message: str, shard: str = "") -> None:
        super().__init__(message, shard)
        self.message = message
        self.shard = shard

    def __str__(self) -> str:
        return f"{self.shard}: {self.message}" if self.shard else self.message


class OutputTooLargeError(ShardError):
    """The rows of one shard cannot be published in one act; another attempt would not help."""


class StorageError(EmbedmillError):
    """One operation on one URL failed; `kind` says whether trying again can help."""

    def __init__(
        self, message: str, url: str = "", operation: str = "", kind: StorageKind = "other"
    ) -> None:
        super().__init__(message, url, operation, kind)
        self.message = message
        self.url = url
        self.operation = operation
        self.kind: StorageKind = kind

    @property
    def transient(self) -> bool:
        return self.kind == "transient"

    def __str__(self) -> str:
        return f"cannot {self.operation} {self.url}: {self.message}"


class RejectionLimitError(EmbedmillError):
    pass


class StageError(EmbedmillError):
    pass


class InvariantError(EmbedmillError):
    pass
