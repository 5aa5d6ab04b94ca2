"""What a person sees while a run works: one live line on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipeline.work import Progress

log = logging.getLogger("embedmill")

_LINE_EVERY_S = 10.0


class Display:
    """Shows a Progress about once a second on a terminal, as a log line every 10 s elsewhere."""

    def __init__(self, console: Console | None) -> None:
        """Without a console there are log lines, on a terminal too."""
        on_terminal = console is not None and console.is_terminal
        self._live = Live(console=console, transient=True) if on_terminal else None
        self._last_line = time.monotonic()
        self._rate = _Rate()

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
        self._rate.add(progress)
        if self._live is not None:
            self._live.update(_table(progress, self._rate))
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            log.info("%s", line(progress, self._rate), extra={"facts": facts(progress)})


def _log_to(stream: TextIO) -> None:
    """Points the handlers at a stream; they keep the one that was there when they were made."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)


class _Rate:
    """Images and tokens per second over the last minute."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, int]] = []

    def add(self, progress: Progress) -> None:
        images, tokens = _seen(progress)
        self._points.append((time.monotonic(), images, tokens))
        while self._points[-1][0] - self._points[0][0] > 60:
            self._points.pop(0)

    def per_second(self) -> tuple[float, float]:
        """(images, tokens) per second."""
        first, last = self._points[0], self._points[-1]
        seconds = max(last[0] - first[0], 1e-9)
        if len(self._points) < 2:
            return 0.0, 0.0
        return max(0.0, (last[1] - first[1]) / seconds), max(0.0, (last[2] - first[2]) / seconds)


def line(progress: Progress, rate: _Rate) -> str:
    """One plain line: shards, images, rates, rejects, time left."""
    images, tokens = rate.per_second()
    finished = progress.already_done + progress.done + progress.lost
    parts = [
        f"shards {finished}/{progress.total}",
        f"images {_seen(progress)[0]:,} ({images:,.1f}/s)",
        f"tokens {tokens:,.0f}/s",
        f"rejects {_rejects(progress)}",
    ]
    if progress.failed:
        parts.append(f"failed shards {len(progress.failed)}")
    parts.append(f"workers {progress.encoders}+{progress.preprocessors}")
    parts.append(f"left {_eta(progress)}")
    return ", ".join(parts)


def facts(progress: Progress) -> dict[str, Any]:
    """What `line` and `summary` tell, for machines; counts are of shards that are done."""
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
        f"{progress.rejected.total():,} rejected ({_rejects(progress)})",
        f"{progress.embedded / seconds:,.1f} images/s, {progress.tokens / seconds:,.0f} tokens/s, "
        f"forward passes {progress.fill:.0%} full, {seconds:,.1f} s",
        f"embeddings: {output}/embeddings/",
    ]
    for shard, cause in progress.failed.items():
        lines.append(f"FAILED {shard}: {cause}")
    return "\n".join(lines)


def _table(progress: Progress, rate: _Rate) -> Table:
    images, tokens = rate.per_second()
    finished = progress.already_done + progress.done + progress.lost
    table = Table.grid(padding=(0, 2))
    table.add_row("shards", f"{finished:,} of {progress.total:,}", f"{progress.leases} open")
    table.add_row("images", f"{_seen(progress)[0]:,}", f"{images:,.1f}/s")
    table.add_row("tokens", f"{_seen(progress)[1]:,}", f"{tokens:,.0f}/s")
    table.add_row("rejects", _rejects(progress), "")
    if progress.failed:
        table.add_row("failed", f"{len(progress.failed)} shards", "")
    table.add_row(
        "workers", f"{progress.encoders} encoding, {progress.preprocessors} preparing", ""
    )
    table.add_row("time left", _eta(progress), "")
    return table


def _seen(progress: Progress) -> tuple[int, int]:
    """(images, tokens) embedded so far, open leases included."""
    return (
        progress.embedded + progress.open_images,
        progress.tokens + progress.open_tokens,
    )


def _rejects(progress: Progress) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in progress.rejected.most_common()) or "none"


def _eta(progress: Progress) -> str:
    done_now, left = progress.done + progress.lost, progress.remaining
    if not done_now:
        return "unknown"
    seconds = round((time.monotonic() - progress.started) / done_now * left)
    hours, rest = divmod(seconds, 3600)
    return f"{hours} h {rest // 60:02d} min" if hours else f"{rest // 60} min {rest % 60:02d} s"
