"""`_run.json` as it is read again: what an output folder says of the run that made it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from encoder.geometry import Geometry
from encoder.output import Readout
from pipeline.config import OutputConfig, RunConfig, StorageConfig
from pipeline.config_file import validate_config
from pipeline.errors import OutputError, StorageError
from pipeline.manifest import RUN_FILE, ModelFacts
from pipeline.storage import Storage, canonical_url

_HIDDEN = "***"  # what the configuration writes in place of a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    fingerprint: str
    fields: Mapping[str, Any]
    model: ModelFacts
    config: RunConfig  # as resolved, without its secrets
    versions: Mapping[str, str]
    created: str = ""  # UTC, ISO 8601

    @property
    def kernel(self) -> Literal["torch", "pillow"]:
        """The resize kernel that the run began with."""
        kernel: Literal["torch", "pillow"] = self.fields["preprocess.resize_kernel"]
        return kernel


def open_output(path: str, config: RunConfig | None) -> tuple[Storage, str, RunRecord]:
    """Storage for an output folder, its canonical URL, and the record of its run.

    Store options are those of the configuration, else the recorded ones, which hold no secret.
    Raises OutputError as `read_run` does.
    """
    output = canonical_url(path)
    storage = Storage(config.storage if config else StorageConfig())
    record = read_run(storage, output)
    return storage if config else Storage(record.config.storage), output, record


def read_run(storage: Storage, output: str) -> RunRecord:
    """The record of the run that an output folder belongs to.

    Raises OutputError where there is none or it cannot be understood.
    """
    url = f"{output}/{RUN_FILE}"
    try:
        stored = json.loads(storage.read(url))
        return RunRecord(
            fingerprint=stored["fingerprint"],
            fields=stored["fields"],
            model=_model_facts(stored["model"]),
            config=validate_config(_as_given(stored["config"]), name=url),
            versions=stored["versions"],
            created=stored.get("created", ""),
        )
    except StorageError as error:
        if error.kind != "not_found":
            raise
        message = (
            f"{output} must be the output folder of a run, what output.path names in its "
            f"configuration; it has no {RUN_FILE}"
        )
        raise OutputError(message) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{url} is no record of a run ({type(error).__name__}: {error})"
        raise OutputError(message) from error


def _as_given(config: dict[str, Any]) -> dict[str, Any]:
    """The recorded configuration without what nobody could have typed.

    Hidden secrets, and outputs' defaults: some are refused where they would have no effect.
    """
    stores, output = config["storage"], config["output"]
    for scheme, options in stores.items():
        if isinstance(options, dict):
            stores[scheme] = {key: value for key, value in options.items() if value != _HIDDEN}
    defaults = OutputConfig(path="-").model_dump(mode="json", exclude={"path"})
    given = {k: v for k, v in output.items() if k not in defaults or v != defaults[k]}
    return {**config, "storage": stores, "output": given}


def _model_facts(stored: Mapping[str, Any]) -> ModelFacts:
    readout = stored["readout"]
    return ModelFacts(
        checkpoint=stored["checkpoint"],
        revision=stored["revision"],
        digest=stored["digest"],
        geometry=Geometry(**stored["geometry"]),
        readout=Readout(**{**readout, "states": tuple(readout["states"])}),
    )
