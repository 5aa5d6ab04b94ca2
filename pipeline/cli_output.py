"""The commands on the output of a run: verify, report and clean."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.config_file import load_config
from pipeline.errors import ConfigError

OutputArgument = Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder of a run.")]
StoreConfigOption = Annotated[
    Path | None,
    typer.Option(help="Take the options of the store from this file.", show_default=False),
]


def verify(
    output: OutputArgument,
    config: Annotated[
        Path | None,
        typer.Option(help="Take the input shards and the store's options from this file."),
    ] = None,
    shards: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SPEC", help="The shards that must be in the output."),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Compute so many random rows again and compare.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for machines.")] = False,
) -> None:
    """Check an output: every file, count and vector. Exit code 1 where something is wrong."""
    from pipeline.run_record import open_output
    from pipeline.verify import input_shards, verify_output
    from pipeline.verify_view import show_json, show_table

    loaded = load_config(config) if config else None
    if loaded and shards:
        raise ConfigError("--input and --config both name the input: give one of them")
    storage, url, record = open_output(output, loaded)
    inputs, unknown = input_shards(storage, record, specs=shards, config=loaded)
    report, picked = verify_output(storage, url, record, inputs, sample=sample)
    if unknown:
        report.notes.append(f"not compared with the input: {unknown}")
    if picked:
        from pipeline.reembed import compare_sample

        compare_sample(storage, url, record, picked, inputs or [], report)
    if as_json:
        show_json(report)
    else:
        show_table(report, Console(highlight=False))
    if not report.ok:
        raise typer.Exit(1)


def report(
    output: OutputArgument,
    html: Annotated[
        str, typer.Option("--html", metavar="PATH", help="The file to write; a URL will do.")
    ] = "report.html",
    config: Annotated[
        Path | None,
        typer.Option(
            help="Take the input shards and the store's options from this file.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write one HTML page on an output: run, counts, speed, images, rejects, embedding health.

    The output may be unfinished. The page needs no network and no other file.
    """
    try:
        from pipeline.report_page import render_page
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe", "matplotlib"):
            raise
        raise ConfigError(
            f"report needs {error.name}, which is not installed: pip install 'embedmill[report]' "
            f"(in a checkout: pip install '.[report]')"
        ) from error
    from pipeline.report import make_report
    from pipeline.run_record import open_output
    from pipeline.verify import input_shards

    loaded = load_config(config) if config else None
    storage, url, record = open_output(output, loaded)
    inputs, unknown = input_shards(storage, record, specs=None, config=loaded)
    page = render_page(make_report(storage, url, record, inputs, unknown)).encode(errors="replace")
    storage.put(html, page)
    print(f"wrote {html} ({len(page):,} bytes)")


def clean(
    output: OutputArgument,
    shards: Annotated[
        list[str] | None,
        typer.Option("--shard", metavar="SPEC", help="Free these shards to be done again."),
    ] = None,
    reasons: Annotated[
        list[str] | None,
        typer.Option("--with-reason", help="Free shards that rejected something for this reason."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell, remove nothing.")] = False,
    config: StoreConfigOption = None,
) -> None:
    """Remove what killed runs left in an output, or free shards to be done again."""
    from pipeline.clean import removals, remove
    from pipeline.run_record import open_output

    storage, url, _ = open_output(output, load_config(config) if config else None)
    count = 0
    for removal in removals(storage, url, specs=shards or [], reasons=reasons or []):
        if not dry_run:
            remove(storage, removal)
        count += 1
        print(f"{'would remove' if dry_run else 'removed'} {removal.url} ({removal.why})")
    if not count:
        print(f"Nothing to remove in {url}", file=sys.stderr)
