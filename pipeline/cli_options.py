"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the run.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one key of the configuration."),
]
