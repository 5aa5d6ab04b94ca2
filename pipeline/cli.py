"""The command line.

Exit codes: 0 all done, 1 finished with failed shards, 2 wrong use or configuration, 3 stopped by a
limit or an invariant, 130 interrupted.
"""

import json
import logging
import shlex
import signal
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from encoder.batch import PackMismatchError
from encoder.config import CheckpointError
from pipeline import logs
from pipeline.cli_input import inspect, plan, schema
from pipeline.cli_options import ConfigArgument, SetOption
from pipeline.cli_output import clean, report, verify
from pipeline.config import RunConfig
from pipeline.config_file import load_config, parse_config
from pipeline.errors import (
    ConfigError,
    InvariantError,
    OutputError,
    RejectionLimitError,
    StageError,
    StorageError,
)

log = logging.getLogger("embedmill")
console = Console(stderr=True, highlight=False)
app = typer.Typer(
    name="embedmill",
    help="Image shards in, embedding shards out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)

_DEMO_TEXT = """\
Writing shards of bundled photos and a small checkpoint to {folder}/
The checkpoint has the shape of SigLIP2 but untrained weights: its vectors mean nothing.
For real ones set model.checkpoint: google/siglip2-base-patch16-naflex
"""

AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster to use; sets ray.address.", show_default=False)
]


@app.command()
def run(
    config: ConfigArgument,
    changes: SetOption = None,
    address: AddressOption = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Only warnings, errors and the summary.")
    ] = False,
    json_logs: Annotated[
        bool, typer.Option("--json-logs", help="The log as JSON, one object a line.")
    ] = False,
) -> None:
    """Embed every shard that has no output yet. The same command continues a stopped run."""
    logs.set_up(quiet=quiet, as_json=json_logs)
    overrides = list(changes or [])
    if address is not None:
        overrides.append(f"ray.address={address}")
    _run(load_config(config, overrides), live=not (quiet or json_logs))


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where the demo writes.")] = Path("embedmill-demo"),
) -> None:
    """Run the whole stage here, on bundled photos and a small model with untrained weights."""
    from pipeline.demo import write_demo

    _say(_DEMO_TEXT.format(folder=folder))
    write_demo(folder)
    text = files("pipeline").joinpath("demo.yaml").read_text(encoding="utf-8")
    overrides = [
        f"input.shards={folder}/shards/*.tar",
        f"output.path={folder}/out",
        f"model.checkpoint={folder}/checkpoint",
    ]
    _run(parse_config(text, overrides, name="the demo's configuration"))


for command in (plan, inspect, verify, report, clean, schema):
    app.command()(command)


def _run(config: RunConfig, *, live: bool = True) -> None:
    from pipeline.cluster import check_address, connect
    from pipeline.driver import run_leases
    from pipeline.manifest import open_run
    from pipeline.metrics import RunMetrics
    from pipeline.progress import Display, facts, summary
    from pipeline.storage import Storage
    from pipeline.work import prepare_work

    check_address(config)
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    run_plan = work.plan
    if not open_run(storage, run_plan.output, config, run_plan.model, run_plan.fingerprint):
        log.warning(
            "%s is in a store that creates an object over one that is there: whole shards all the "
            "same, but start only one run at a time on it, and see embedmill clean afterwards",
            run_plan.output,
        )
    if not work.pending:
        _say(f"Nothing to do: all {work.total} shards are done in {run_plan.output}")
        return
    log.info("%d of %d shards to do", len(work.pending), work.total)
    try:
        with connect(config), Display(console if live else None) as display:
            metrics = RunMetrics(run_plan.output)
            progress = run_leases(work, storage, (display.show, metrics.update))
    except KeyboardInterrupt as error:
        command = shlex.join(["embedmill", *sys.argv[1:]])
        _say(f"Stopped. What is published stays; continue with: {command}")
        raise typer.Exit(130) from error
    _say(summary(progress, run_plan.output), **facts(progress))
    if progress.failed:
        raise typer.Exit(1)


def main() -> NoReturn:
    """Runs the command line and exits with one of the documented codes."""
    logs.set_up()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(standalone_mode=True)
    except (ConfigError, OutputError, CheckpointError, StorageError) as error:
        _fail(str(error), 2)
    except (RejectionLimitError, InvariantError, StageError, PackMismatchError) as error:
        _fail(str(error), 3)
    except Exception:
        log.exception("stopped by an error that embedmill does not know")
        sys.exit(3)
    sys.exit(0)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # a stopped job ends like Ctrl-C: leases dropped, actors ended


def _say(message: str, **facts: Any) -> None:
    """None; tells it whatever the level of the log, with the facts where the log is JSON."""
    if logs.is_json():
        print(json.dumps({"message": message, **facts}), file=sys.stderr)
    else:
        console.print(message, markup=False, soft_wrap=True)


def _fail(message: str, code: int) -> NoReturn:
    _say(f"error: {message}")
    sys.exit(code)


def _version(value: bool) -> None:
    if value:
        print(f"embedmill {version('embedmill')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
