"""The obstore store of one bucket or server, with the configuration's options and credentials."""

import base64
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, MemoryStore, S3Store

from pipeline.config import StorageConfig
from pipeline.errors import ConfigError
from pipeline.urls import Location, without_secrets

Store = AzureStore | GCSStore | HTTPStore | MemoryStore | S3Store
Options = dict[str, Any]  # obstore checks the names

_MEMORY: dict[str, MemoryStore] = {}  # by bucket; all that this process keeps under memory://
# Options of the HTTP client below a store; all others are the store's own. Not among them: timeout,
# which is storage.request_timeout_s, and read_timeout, which ends every upload that takes longer
# because it waits for the first byte of the answer.
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "root_certificate",
        "user_agent",
    }
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def make_store(place: Location, config: StorageConfig, timeout_s: float) -> Store:
    """The store that holds the location; keys are relative to it.

    obstore's own retries are off: storage tries again, and knows what may be tried again.
    Raises ConfigError for an option that the store does not know and for a missing region.
    """
    if place.scheme == "memory":
        return _MEMORY.setdefault(place.bucket, MemoryStore())
    section = "http" if place.scheme in ("http", "https") else place.scheme
    given: Mapping[str, str | bool] = getattr(config, section)
    client: Options = {"timeout": timedelta(seconds=timeout_s), "connect_timeout": "10s"}
    client |= {key: value for key, value in given.items() if key in _CLIENT_OPTIONS}
    options = {key: value for key, value in given.items() if key not in _CLIENT_OPTIONS}
    try:
        return _MAKERS[section](
            place, options, {"client_options": client, "retry_config": {"max_retries": 0}}
        )
    except (BaseError, ValueError) as error:
        reason = without_secrets(str(error).split("\n", 1)[0])
        raise ConfigError(f"storage.{section}, needed for {place.url}: {reason}") from None


def _s3(place: Location, options: Options, common: Options) -> Store:
    endpoint = options.get("aws_endpoint_url_s3") or options.get("endpoint") or _env(_ENDPOINTS)
    if str(endpoint).startswith("http://"):
        common["client_options"].setdefault("allow_http", True)
    # One POST for a single key is not cheaper, and several S3 servers lack it.
    options.setdefault("disable_bulk_delete", True)
    region = options.get("region") or options.get("default_region") or _env(_REGIONS)
    profile = options.pop("profile", None)
    if not profile and not options.keys() & {"access_key_id", "skip_signature"}:
        profile = None if _env(["AWS_ACCESS_KEY_ID"]) else _env(["AWS_PROFILE"])
    if profile:
        common["credential_provider"] = provider = _profile_credentials(profile)
        region = region or provider.config.get("region")
    if not region and not endpoint:
        raise ConfigError(
            f"{place.url}: the region of the bucket must be known, found none: set "
            "storage.s3.region, AWS_REGION or the profile's region (storage.s3.endpoint for "
            "servers other than AWS)"
        )
    return S3Store(place.bucket, config=cast(Any, options), **common)


def _profile_credentials(profile: str) -> Any:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise ConfigError(
            f"AWS profile {profile!r} (storage.s3.profile or AWS_PROFILE): reading profiles needs "
            "boto3: pip install 'embedmill[aws]'"
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"AWS profile {profile!r}: {error}") from error


def _gs(place: Location, options: Options, common: Options) -> Store:
    return GCSStore(place.bucket, config=cast(Any, options), **common)


def _az(place: Location, options: Options, common: Options) -> Store:
    return AzureStore(place.bucket, config=cast(Any, options), **common)


def _http(place: Location, options: Options, common: Options) -> Store:
    if options:
        raise ConfigError(f"storage.http has no option {min(options)!r}")
    parts = urlsplit(place.source)
    common["client_options"].setdefault("allow_http", place.scheme == "http")
    user, at, _ = parts.netloc.rpartition("@")
    if at:  # left in the URL, obstore would show it in errors and not send it
        token = base64.b64encode(unquote(user).encode()).decode()
        common["client_options"]["default_headers"] = {"authorization": f"Basic {token}"}
    query = f"?{parts.query}" if parts.query else ""
    return HTTPStore(f"{place.scheme}://{place.bucket}/{query}", **common)


def _env(names: Sequence[str]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


_MAKERS = {"s3": _s3, "gs": _gs, "az": _az, "http": _http}
