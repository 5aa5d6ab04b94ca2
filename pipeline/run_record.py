"""`_run.json` as it is read again: what an output folder says of the run that made it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import RunConfig
from pipeline.config_file import validate_config
from pipeline.errors import OutputError, StorageError
from pipeline.manifest import RUN_FILE, ModelFacts
from pipeline.storage import Storage

_HIDDEN = "***"  # what the configuration writes in place of a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    fingerprint: str
    fields: Mapping[str, Any]
    model: ModelFacts
    config: RunConfig  # as resolved, without its secrets
    versions: Mapping[str, str]


def read_run(storage: Storage, output: str) -> RunRecord:
    """The record of the run that an output folder belongs to.

    Raises OutputError where there is none or it cannot be understood.
    """
    url = f"{output}/{RUN_FILE}"
    try:
        stored = json.loads(storage.read(url))
        stores = stored["config"].get("storage", {})
        for scheme, options in stores.items():
            if isinstance(options, dict):
                stores[scheme] = {k: v for k, v in options.items() if v != _HIDDEN}
        return RunRecord(
            fingerprint=stored["fingerprint"],
            fields=stored["fields"],
            model=ModelFacts(**stored["model"]),
            config=validate_config(stored["config"], name=url),
            versions=stored["versions"],
        )
    except StorageError as error:
        if error.kind != "not_found":
            raise
        message = f"{output} must be the output folder of a run; it has no {RUN_FILE}"
        raise OutputError(message) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{url} is no record of a run ({type(error).__name__}: {error})"
        raise OutputError(message) from error
