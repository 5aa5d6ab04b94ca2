"""What the sections of a run configuration are built of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from pipeline.urls import without_secrets

PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


# Store options whose values may be shown. Any other may be a secret and is written as ***.
_SHOWN_OPTIONS = frozenset(
    {"account_name", "allow_http", "aws_endpoint_url_s3", "checksum_algorithm", "conditional_put"}
    | {"connect_timeout", "default_region", "endpoint", "http1_only", "http2_only", "profile"}
    | {"region", "server_side_encryption"}
)


def _redacted(options: dict[str, str | bool]) -> dict[str, str | bool]:
    return {key: _shown(key, value) for key, value in options.items()}


def _shown(key: str, value: str | bool) -> str | bool:
    if isinstance(value, bool):
        return value
    return without_secrets(value) if key in _SHOWN_OPTIONS else "***"


# Dumped and shown without secrets: `_run.json`, logs. Pickles keep them, for the workers.
StoreOptions = Annotated[dict[str, str | bool], PlainSerializer(_redacted), Field(repr=False)]
Url = Annotated[str, PlainSerializer(without_secrets)]


class Section(BaseModel):
    """A frozen mapping that refuses unknown keys and silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True
    )
