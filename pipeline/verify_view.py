"""How `embedmill verify` tells what it found: tables for people, one JSON object for machines."""

import json
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from pipeline.verify import CHECKS, Report

_SHOWN = 5  # findings of each check; --json has up to 100


def show_json(report: Report) -> None:
    """None; prints one JSON object."""
    content = {field.name: getattr(report, field.name) for field in fields(report)}
    content["findings"] = [asdict(finding) for finding in report.findings]
    print(json.dumps({"ok": report.ok, **content}))


def show_table(report: Report, console: Console) -> None:
    """None; prints a line for each check, what was found, and the sums."""
    table = Table("check", "found", box=None, pad_edge=False)
    for name in report.checked:
        count = report.counts[name]
        table.add_row(CHECKS[name], f"[red]{count:,}[/red]" if count else "[green]ok[/green]")
    console.print(table)
    for name in report.checked:
        shown = [finding for finding in report.findings if finding.check == name][:_SHOWN]
        if shown:
            console.print(f"\n{CHECKS[name]}:", style="bold")
        for finding in shown:
            _line(console, f"  {finding.subject}: {finding.detail}")
        if report.counts[name] > len(shown):
            _line(console, f"  and {report.counts[name] - len(shown):,} more; --json has up to 100")
    console.print()
    for line in [*_sums(report), *report.notes]:
        _line(console, line)


def _sums(report: Report) -> list[str]:
    reasons = ", ".join(f"{name} {count:,}" for name, count in report.rejected.most_common())
    inputs = "" if report.inputs is None else f" of {report.inputs:,}"
    lines = [
        f"{report.shards:,}{inputs} shards, {report.read:,} images read = {report.rows:,} rows + "
        f"{report.rejected.total():,} rejected ({reasons or 'none'})"
    ]
    if report.empty_shards:
        lines.append(f"{report.empty_shards:,} shards have no rows")
    if report.incomplete_shards:
        lines.append(f"{report.incomplete_shards:,} shards are incomplete: their tars were cut")
    if report.sampled:
        lines.append(
            f"{report.sampled:,} rows computed again, off by {report.worst:.2g} of their largest "
            f"value at most"
        )
    return lines


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
