"""What a person sees while a run works: one live line on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections import Counter
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipeline.pace import Pace
from pipeline.work import OpenLease, Progress

log = logging.getLogger("embedmill")

_LINE_EVERY_S = 10.0
# An open shard is named in the lines when it is older than this, and than three of its kind.
_LONG_S = 60.0


class Display:
    """Shows a Progress about once a second on a terminal, as a log line every 10 s elsewhere."""

    def __init__(self, console: Console | None) -> None:
        """Without a console there are log lines, on a terminal too."""
        on_terminal = console is not None and console.is_terminal
        self._live = Live(console=console, transient=True) if on_terminal else None
        self._last_line = time.monotonic()
        self._pace = Pace()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            _log_to(sys.stderr)  # now the display's own, which prints above the live lines
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            _log_to(sys.stderr)

    def show(self, progress: Progress) -> None:
        self._pace.add(progress)
        if self._live is not None:
            self._live.update(_table(progress, self._pace))
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            log.info("%s", line(progress, self._pace), extra={"facts": facts(progress)})


def _log_to(stream: TextIO) -> None:
    """Points the handlers at a stream; they keep the one that was there when they were made."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)


def line(progress: Progress, pace: Pace) -> str:
    """One plain line: shards, images, rates, rejects, time left."""
    images, tokens = pace.per_second()
    finished = progress.already_done + progress.done + progress.lost
    parts = [
        f"shards {finished}/{progress.total}",
        f"images {progress.images:,} ({images:,.1f}/s)",
        f"tokens {tokens:,.0f}/s",
        f"rejects {_rejects(progress.rejected + progress.open_rejected)}",
    ]
    if progress.failed:
        parts.append(f"failed shards {len(progress.failed)}")
    parts.append(f"workers {progress.encoders}+{progress.preprocessors}")
    usual_s = progress.lease_s / progress.done if progress.done else 0.0
    long = [o for o in progress.oldest[:1] if o.age_s > max(_LONG_S, 3 * usual_s)]
    parts += [f"open for long {_open_lease(o)}" for o in long]
    parts.append(f"left {_time_left(progress, pace)}")
    return ", ".join(parts)


def facts(progress: Progress) -> dict[str, Any]:
    """What `line` and `summary` tell, for machines; what is not called open is of shards done."""
    return {
        "shards": progress.total,
        "shards_done_before": progress.already_done,
        "shards_done": progress.done,
        "shards_lost": progress.lost,
        "shards_failed": dict(progress.failed),
        "images_read": progress.read,
        "images_embedded": progress.embedded,
        "rejected": dict(progress.rejected),
        "tokens": progress.tokens,
        "open_images": progress.open_images,
        "open_rejected": dict(progress.open_rejected),
        "open_longest": [
            {"shard": o.lease.shard, "seconds": round(o.age_s, 1), "images": o.images}
            for o in progress.oldest
        ],
        "encoders": progress.encoders,
        "preprocessors": progress.preprocessors,
        "leases": progress.leases,
        "seconds": round(time.monotonic() - progress.started, 1),
    }


def summary(progress: Progress, output: str) -> str:
    """The lines printed at the end of a run."""
    seconds = max(time.monotonic() - progress.started, 1e-9)
    lines = [
        f"{progress.done} shards done now, {progress.already_done} were done before"
        + (f", {progress.lost} were published by another run" if progress.lost else ""),
        f"{progress.read:,} images read = {progress.embedded:,} embedded + "
        f"{progress.rejected.total():,} rejected ({_rejects(progress.rejected)})",
        f"{progress.embedded / seconds:,.1f} images/s, {progress.tokens / seconds:,.0f} tokens/s, "
        f"forward passes {progress.fill:.0%} full, {seconds:,.1f} s",
        f"embeddings: {output}/embeddings/",
    ]
    for shard, cause in progress.failed.items():
        lines.append(f"FAILED {shard}: {cause}")
    return "\n".join(lines)


def _table(progress: Progress, pace: Pace) -> Table:
    images, tokens = pace.per_second()
    finished = progress.already_done + progress.done + progress.lost
    table = Table.grid(padding=(0, 2))
    table.add_row("shards", f"{finished:,} of {progress.total:,}", f"{progress.leases} open")
    table.add_row("images", f"{progress.images:,}", f"{images:,.1f}/s")
    table.add_row("tokens", f"{progress.tokens + progress.open_tokens:,}", f"{tokens:,.0f}/s")
    table.add_row("rejects", _rejects(progress.rejected + progress.open_rejected), "")
    if progress.failed:
        table.add_row("failed", f"{len(progress.failed)} shards", "")
    table.add_row(
        "workers", f"{progress.encoders} encoding, {progress.preprocessors} preparing", ""
    )
    table.add_row("oldest open", "\n".join(map(_open_lease, progress.oldest)) or "none open", "")
    table.add_row("time left", _time_left(progress, pace), "")
    return table


def _rejects(rejected: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in rejected.most_common()) or "none"


def _open_lease(open_lease: OpenLease) -> str:
    shard = open_lease.lease.shard.rpartition("/")[2]
    return f"{shard} {open_lease.age_s:,.0f} s, {open_lease.images:,} images"


def _time_left(progress: Progress, pace: Pace) -> str:
    left = pace.seconds_left(progress)
    if left is None:
        return "unknown"
    hours, rest = divmod(round(left), 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"
