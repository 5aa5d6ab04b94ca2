"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def _complete_keys(incomplete: str) -> list[str]:
    from pipeline.config_reference import config_keys

    return [f"{key}=" for key in config_keys() if key.startswith(incomplete)]


ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=c",
        help="Change one key of the configuration.",
        autocompletion=_complete_keys,
    ),
]
