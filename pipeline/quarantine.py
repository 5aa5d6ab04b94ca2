"""Shards that were given up: one small JSON object each below `failed/`, gone once they succeed."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pipeline.errors import OutputError, StorageError
from pipeline.manifest import FAILED, failed_url
from pipeline.storage import Storage
from pipeline.urls import without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedShard:
    """Why a run went on without a shard."""

    shard: str  # canonical shard id
    error: str  # class of the last error
    message: str  # what it said, without secrets
    attempts: int  # in the run that gave up
    at: str  # UTC, ISO 8601


def describe_failure(shard: str, error: BaseException, attempts: int) -> FailedShard:
    """The record of a shard that is given up now."""
    return FailedShard(
        shard=shard,
        error=type(error).__name__,
        message=without_secrets(str(error)),
        attempts=attempts,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def write_failure(storage: Storage, output: str, failure: FailedShard) -> None:
    """None; replaces what an earlier run said of the shard."""
    text = json.dumps(asdict(failure), indent=2)
    storage.put(failed_url(output, failure.shard), text.encode())


def failed_urls(storage: Storage, output: str) -> set[str]:
    """The URLs of all that is below `failed/`; compare with `manifest.failed_url`.

    One listing tells a driver which successes have something to remove.
    """
    return {info.url for info in storage.list(f"{output}/{FAILED}") if info.url.endswith(".json")}


def read_failures(storage: Storage, output: str) -> Iterator[FailedShard]:
    """The shards that are given up, in the order of their names.

    Raises OutputError for an object that is no such record.
    """
    for url in sorted(failed_urls(storage, output)):
        if (failure := read_failure(storage, url)) is not None:
            yield failure


def read_failure(storage: Storage, url: str) -> FailedShard | None:
    """One record; None where its shard succeeded meanwhile. Raises OutputError for what is none."""
    try:
        return FailedShard(**json.loads(storage.read(url)))
    except StorageError as error:
        if error.kind != "not_found":
            raise
        return None
    except (ValueError, TypeError) as error:
        raise OutputError(f"{url} must be the record of a failed shard: {error}") from error


def remove_failure(storage: Storage, output: str, shard: str) -> None:
    """None; the shard is no longer given up, or never was."""
    storage.delete(failed_url(output, shard))
