"""The command line.

Exit codes: 0 all done, 1 finished with failed shards, 2 wrong use or configuration, 3 stopped by a
limit or an invariant, 130 interrupted.
"""

import logging
import shlex
import signal
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from encoder.batch import PackMismatchError
from encoder.config import CheckpointError
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

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one key of the configuration."),
]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster to use; sets ray.address.", show_default=False)
]

OutputArgument = Annotated[str, typer.Argument(metavar="OUTPUT", help="Output folder of a run.")]
StoreConfigOption = Annotated[
    Path | None,
    typer.Option(help="Take the options of the store from this file.", show_default=False),
]


@app.command()
def run(config: ConfigArgument, changes: SetOption = None, address: AddressOption = None) -> None:
    """Embed every shard that has no output yet. The same command continues a stopped run."""
    overrides = list(changes or [])
    if address is not None:
        overrides.append(f"ray.address={address}")
    _run(load_config(config, overrides))


@app.command()
def plan(config: ConfigArgument, changes: SetOption = None) -> None:
    """Check the configuration and count the shards, done and to do. Nothing is written."""
    from pipeline.manifest import check_output
    from pipeline.storage import Storage
    from pipeline.work import prepare_work

    loaded = load_config(config, changes or [])
    storage = Storage(loaded.storage)
    work = prepare_work(loaded, storage)
    belongs = check_output(storage, work.plan.output, work.plan.fingerprint)
    model, done = work.plan.model, work.total - len(work.pending)
    rows = {
        "configuration": f"{config}: valid",
        "model": f"{model.checkpoint} ({loaded.model_dtype} on {loaded.device}), "
        f"{model.readout.vectors} of width {model.readout.width}, digest {model.digest[:16]}",
        "images": f"at most {model.geometry.max_num_patches} patches of "
        f"{model.geometry.patch_size} px, "
        f"decode {loaded.preprocess.decode}, resize kernel {work.plan.kernel}",
        "fingerprint": work.plan.fingerprint.sha[:16],
        "shards": f"{work.total:,}: {done:,} done, {len(work.pending):,} to do",
        "output": work.plan.output + ("" if belongs else " (new)"),
    }
    for name, value in rows.items():
        print(f"{name:<14} {value}")


@app.command()
def inspect(
    paths: Annotated[list[str], typer.Argument(help="Shards, image files or folders of images.")],
    config: Annotated[
        Path | None, typer.Option(help="Take input, preprocess and packing from this file.")
    ] = None,
    max_num_patches: Annotated[int | None, typer.Option(help="Patches per image at most.")] = None,
    patch_size: Annotated[int, typer.Option(help="Side of a patch in pixels.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines for machines.")] = False,
) -> None:
    """Tell what would happen to images: formats, grids, tokens, packs, rejects. Needs no model."""
    from encoder.geometry import Geometry
    from pipeline.config import InputConfig, PackingConfig, PreprocessConfig, StorageConfig
    from pipeline.inspection import Summary, inspect_images
    from pipeline.inspection_view import show_json, show_table
    from pipeline.storage import Storage

    loaded = load_config(config) if config else None
    preprocess = loaded.preprocess if loaded else PreprocessConfig()
    if max_num_patches is None:
        max_num_patches = preprocess.max_num_patches or 256
    summary = Summary()
    findings = inspect_images(
        paths,
        inputs=loaded.input if loaded else InputConfig(shards="-"),
        preprocess=preprocess,
        packing=loaded.packing if loaded else PackingConfig(),
        geometry=Geometry(patch_size=patch_size, max_num_patches=max_num_patches),
        storage=Storage(loaded.storage if loaded else StorageConfig()),
        summary=summary,
    )
    if as_json:
        show_json(findings, summary)
    else:
        show_table(findings, summary, Console(highlight=False))
    if summary.failed:
        raise typer.Exit(1)


@app.command()
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


@app.command()
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
        _say(f"Nothing to remove in {url}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where the demo writes.")] = Path("embedmill-demo"),
) -> None:
    """Run the whole stage here, on bundled photos and a small model with untrained weights."""
    from pipeline.demo import write_demo

    console.print(f"Writing shards of bundled photos and a small seeded checkpoint to {folder}/")
    console.print("The checkpoint has the shape of SigLIP2 but untrained weights: its vectors mean")
    console.print(
        "nothing. For real ones set model.checkpoint: google/siglip2-base-patch16-naflex."
    )
    write_demo(folder)
    text = files("pipeline").joinpath("demo.yaml").read_text(encoding="utf-8")
    overrides = [
        f"input.shards={folder}/shards/*.tar",
        f"output.path={folder}/out",
        f"model.checkpoint={folder}/checkpoint",
    ]
    _run(parse_config(text, overrides, name="the demo's configuration"))


def _run(config: RunConfig) -> None:
    from pipeline.cluster import connect
    from pipeline.driver import run_leases
    from pipeline.manifest import open_run
    from pipeline.progress import Display, summary
    from pipeline.storage import Storage
    from pipeline.work import prepare_work

    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    run_plan = work.plan
    open_run(storage, run_plan.output, config, run_plan.model, run_plan.fingerprint)
    if not work.pending:
        _say(f"Nothing to do: all {work.total} shards are done in {run_plan.output}")
        return
    log.info("%d of %d shards to do", len(work.pending), work.total)
    try:
        with connect(config), Display(console) as display:
            progress = run_leases(work, storage, display.show)
    except KeyboardInterrupt as error:
        command = shlex.join(["embedmill", *sys.argv[1:]])
        _say(f"Stopped. What is published stays; continue with: {command}")
        raise typer.Exit(130) from error
    _say(summary(progress, run_plan.output))
    if progress.failed:
        raise typer.Exit(1)


def main() -> NoReturn:
    """Runs the command line and exits with one of the documented codes."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
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


def _say(message: str) -> None:
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
