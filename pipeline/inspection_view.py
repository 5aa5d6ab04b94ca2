"""How `embedmill inspect` shows what it finds: a table for people, JSON lines for machines."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, fields

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.inspection import Finding, Summary

_MAX_ROWS = 50  # of the table; --json has them all
_BAR = 40  # characters of the longest bar


def show_json(findings: Iterable[Finding], summary: Summary) -> None:
    """None; prints one JSON object a line for each image, and one with the sums."""
    for finding in findings:
        print(json.dumps({**asdict(finding), "tokens": finding.tokens}))
    # asdict copies a Counter by its pairs and makes another of them
    sums = {field.name: getattr(summary, field.name) for field in fields(summary)}
    print(json.dumps({"summary": {**sums, "fill": round(summary.fill, 4)}}))


def show_table(findings: Iterable[Finding], summary: Summary, console: Console) -> None:
    """None; prints the first images, then the sums of all."""
    table = Table("key", "format", "mode", "height x width", "turn", "grid", "tokens", "outcome")
    for number, finding in enumerate(findings):
        if number < _MAX_ROWS:
            table.add_row(*_cells(finding))
    console.print(table)
    hidden = summary.images - _MAX_ROWS
    if hidden > 0:
        console.print(f"and {hidden:,} more images; --json shows them all")
    for line in _sums(summary):
        console.print(line, markup=False)


def _cells(finding: Finding) -> list[str]:
    header, grid = finding.header, finding.grid
    known = (
        ["", "", "", ""]
        if header is None
        else [
            header.format,
            header.mode,
            f"{header.height} x {header.width}",
            str(header.orientation) if header.orientation != 1 else "",
        ]
    )
    if grid is None:
        return [escape(finding.key), *known, "", "", escape(f"{finding.reason}: {finding.detail}")]
    return [escape(finding.key), *known, f"{grid[0]} x {grid[1]}", str(finding.tokens), "ok"]


def _sums(summary: Summary) -> list[str]:
    good = summary.tokens.total()
    total = sum(tokens * count for tokens, count in summary.tokens.items())
    lines = [f"{summary.images:,} images: {good:,} fit, {summary.rejected.total():,} rejected"]
    lines += [f"  {reason:<20} {count:,}" for reason, count in summary.rejected.most_common()]
    if summary.skipped:
        lines.append(f"skipped members: {counts(summary.skipped)}")
    if summary.warnings:
        lines.append(f"warnings: {counts(summary.warnings)}")
    lines += [f"FAILED {shard}: {message}" for shard, message in summary.failed.items()]
    if good:
        lines.append(
            f"{total:,} tokens, {total / good:.1f} an image; {summary.packs:,} packs of at most "
            f"{summary.token_budget:,} tokens, {summary.fill:.1%} full"
        )
        lines += ["tokens of an image:", *histogram(summary.tokens)]
    return lines


def counts(counter: Counter[str]) -> str:
    """Names with their numbers, the most frequent first."""
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common())


def histogram(tokens: Counter[int]) -> list[str]:
    """Lines of bars: images by their number of tokens."""
    width = max(1, -(-max(tokens) // 16))  # 16 bins from zero to the largest
    bins = Counter[int]()
    for value, count in tokens.items():
        bins[(value - 1) // width] += count
    longest = max(bins.values())
    return [
        f"  {number * width + 1:>5}-{(number + 1) * width:<5} "
        f"{'#' * max(1, round(_BAR * bins[number] / longest))} {bins[number]:,}"
        for number in range(min(bins), max(bins) + 1)
        if bins[number]
    ]
