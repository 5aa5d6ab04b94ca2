"""The commands before a run: plan, inspect and schema. None writes anything."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipeline.cli_options import ConfigArgument, SetOption
from pipeline.config import RunConfig
from pipeline.config_file import load_config

if TYPE_CHECKING:
    from pipeline.storage import Storage
    from pipeline.work import Work


def plan(
    config: ConfigArgument,
    changes: SetOption = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Images to look at and to try; 0 only checks and counts.")
    ] = 64,
) -> None:
    """Check the configuration, count the shards, and forecast the run. Nothing is written."""
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
    if sample and work.pending:
        _forecast(work, storage, sample)


def _forecast(work: "Work", storage: "Storage", count: int) -> None:
    from pipeline.forecast import forecast, sample_images, try_encoder
    from pipeline.forecast_view import (
        forecast_lines,
        memory_lines,
        sampled_lines,
        speed_lines,
        warnings,
    )
    from pipeline.run_encoder import device_here, load_run_encoder

    plan, config = work.plan, work.plan.config
    sampled = sample_images(work.pending, plan, storage, count)
    _section("sampled", sampled_lines(sampled))
    found, speed = forecast(work.pending, sampled, plan, storage), None
    machine = _memory_here(config)
    if found is not None and sampled.trial:
        if (device := device_here(config)) == config.device:
            encoder = load_run_encoder(config, plan.model, storage, device=device)
            speed = try_encoder(encoder, sampled.trial)
        _section("to do", forecast_lines(found, config.packing.token_budget))
        _section("speed", speed_lines(found, config, sampled.images_per_s, speed))
    _section("memory", memory_lines(config, machine))
    for warning in warnings(sampled, config, encoder=speed, machine=machine):
        print(f"WARNING        {warning}")


def _section(name: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        print(f"{'' if number else name:<14} {line}")


def _memory_here(config: RunConfig) -> int | None:
    """Bytes of this machine, where the run would be on it alone."""
    if config.ray.address or os.environ.get("RAY_ADDRESS"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def inspect(
    paths: Annotated[list[str], typer.Argument(help="Shards, image files or folders of images.")],
    config: Annotated[
        Path | None, typer.Option(help="Take input, preprocess and packing from this file.")
    ] = None,
    max_num_patches: Annotated[
        int | None, typer.Option(min=1, help="Patches per image at most.")
    ] = None,
    patch_size: Annotated[int, typer.Option(min=1, help="Side of a patch in pixels.")] = 16,
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


def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The reference for people, docs/configuration.md.")
    ] = False,
) -> None:
    """Print the JSON schema of the configuration, for editors and other checkers."""
    from pipeline.config_reference import config_reference, config_schema

    print(config_reference().rstrip() if markdown else json.dumps(config_schema(), indent=2))
