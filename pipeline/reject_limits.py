"""How much may be rejected: the share of a whole run, committed shards of earlier runs included."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.config import LimitsConfig
from pipeline.errors import OutputError, RejectionLimitError, StorageError
from pipeline.footer import read_footer
from pipeline.parallel import in_threads
from pipeline.records import ShardReport
from pipeline.storage import Storage

log = logging.getLogger("embedmill")

_THREADS = 16  # each waits for a footer
_SHOWN = 3


class RejectShare:
    """Images read and rejected by a run and, scaled up from a sample, before it."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._read = 0.0
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._before = ""

    def seed(self, storage: Storage, sample: Sequence[str], committed: int) -> None:
        """None; counts the footers of these embeddings objects for all that are committed."""
        read = in_threads(partial(_footer, storage), sample, threads=_THREADS)
        footers = [footer for footer in read if footer is not None]
        if not footers:
            return
        scale = committed / len(footers)
        for footer in footers:
            self._read += scale * footer["read"]
            for reason, count in footer["rejected"].items():
                self._rejected[reason] += scale * count
        exact = "" if scale == 1 else f", estimated from {len(footers)} of them"
        self._before = f", {committed:,} shards of earlier runs included{exact}"

    def add(self, report: ShardReport) -> None:
        """None; counts a shard. Raises RejectionLimitError where the share is above the limit."""
        self._read += report.read
        self._rejected.update(report.rejected)
        for reason, example in report.examples.items():
            self._examples.setdefault(reason, example)
        rejected, limit = self._rejected.total(), self._limits.max_reject_share
        if self._read < self._limits.min_images_for_share or rejected <= limit * self._read:
            return
        raise RejectionLimitError(
            f"at most limits.max_reject_share = {limit:g} of all images may be rejected, found "
            f"{rejected:,.0f} of {self._read:,.0f}{self._before}:\n"
            f"{describe_reasons(self._rejected, self._examples)}\n"
            f"What is done stays, and rejects/ in the output has every one of them. Mend the data "
            f"or the setting behind it; where so many rejects are right, raise the limit."
        )


def _footer(storage: Storage, url: str) -> dict[str, Any] | None:
    """None for an object that cannot be read: `embedmill verify` is there to judge it."""
    try:
        return read_footer(storage, url)
    except (OutputError, StorageError) as error:
        log.warning("not counted among the rejects so far: %s", error)
        return None


def describe_reasons(rejected: Mapping[str, float], examples: Mapping[str, str]) -> str:
    """The most frequent reasons, a line for each, with an example where there is one."""
    lines = []
    for reason, count in Counter(rejected).most_common(_SHOWN):
        example = f", e.g. {examples[reason]}" if reason in examples else ""
        lines.append(f"  {reason} {count:,.0f}{example}")
    return "\n".join(lines)
