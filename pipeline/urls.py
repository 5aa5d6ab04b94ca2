"""Paths and URLs: one canonical form for each object, and nothing secret in what is shown."""

import os
import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes, urlsplit

from pipeline.errors import ConfigError, StorageError

SCHEMES = ("file", "s3", "gs", "az", "http", "https", "memory")
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ONE_SLASH = re.compile(rf"(?:{'|'.join(SCHEMES)}):/?(?=[^/])")
_SAFE = "/!$&'()*+,;=:@"  # what RFC 3986 allows in a path: dt=2024/a,b stays readable
# Canonical at a glance, a fifth of the work: a driver may see a million of them several times.
_CANONICAL = re.compile(r"(?:s3|gs|az)://[\w.-]+(?:/[\w.~!$&'()*+,;=:@-]+)+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where an object is. `url` is canonical and may be shown; `source` may hold secrets."""

    scheme: str
    bucket: str  # bucket, container, or host and port; empty for files
    key: str  # decoded; an absolute path for files
    url: str
    source: str = field(repr=False)  # as it was given: signed URLs need their query


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One version of one object."""

    url: str  # canonical
    size: int  # bytes
    etag: str | None  # or what else tells versions apart: inode and time, Last-Modified


def canonical_url(path_or_url: str) -> str:
    """The absolute URL without query, fragment, user info and trailing slash; the shard's identity.

    Plain paths are taken literally (`~` is the home folder) and become file:///abs/path; symlinks
    stay. In URLs percent codes are decoded, then everything but the path characters of RFC 3986 is
    encoded, so `s3://b/a b` and `s3://b/a%20b` are one object, and a literal % is written %25.
    A canonical URL is its own canonical form. Raises ConfigError for what is no path or known URL.
    """
    return path_or_url if _CANONICAL.fullmatch(path_or_url) else locate(path_or_url).url


def is_url(path_or_url: str) -> bool:
    """True for what has a scheme, known or not."""
    return _HAS_SCHEME.match(path_or_url) is not None


def locate(path_or_url: str) -> Location:
    """The parts of a path or URL. Raises ConfigError as canonical_url does."""
    if not path_or_url or "\0" in path_or_url:
        raise ConfigError(f"a path or URL must be a non-empty text, found {path_or_url!r}")
    if half := _ONE_SLASH.match(path_or_url):
        scheme, rest = half[0].rstrip("/"), path_or_url[half.end() :]
        raise ConfigError(
            f"{without_secrets(path_or_url)}: a URL has two slashes, {scheme}//{rest}; a folder "
            f"of that name is ./{path_or_url}"
        )
    if not is_url(path_or_url):
        return _local(os.path.expanduser(path_or_url), path_or_url)
    parts = urlsplit(path_or_url)
    shown = f"{parts.scheme}://{_without_user(parts.netloc)}{parts.path}"
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"{shown}: the scheme must be one of {', '.join(SCHEMES)}, found {parts.scheme!r}"
        )
    if re.search(r"[\x00-\x1f]", path_or_url):  # urlsplit would leave them out
        raise ConfigError(f"{shown}: control characters in a URL must be percent-encoded")
    web = parts.scheme in ("http", "https")
    if not web and (parts.query or parts.fragment or path_or_url[-1] in "?#"):
        raise ConfigError(f"{shown}: only web URLs have a query; write ? as %3F and # as %23")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ConfigError(f"{shown}: a file URL must be file:///absolute/path")
        return _local(path, path_or_url)
    bucket = _without_user(parts.netloc)
    if parts.scheme != "memory" and not bucket:
        raise ConfigError(f"{shown}: {parts.scheme}:// must be followed by a bucket or host name")
    if web:
        bucket = bucket.lower()
    key = path.strip("/")
    return Location(
        scheme=parts.scheme,
        bucket=bucket,
        key=key,
        url=object_url(parts.scheme, bucket, key),
        source=path_or_url,
    )


def object_url(scheme: str, bucket: str, key: str) -> str:
    """The canonical URL of a key in a bucket; of an absolute path where the scheme is file."""
    path = quoted(key.strip("/"))
    return f"{scheme}://{bucket}/{path}" if path or not bucket else f"{scheme}://{bucket}"


def quoted(key: str) -> str:
    """The key as it stands in a canonical URL."""
    return quote(os.fsencode(key), safe=_SAFE)


def without_secrets(text: str) -> str:
    """The text without the user info of every URL in it, and without the query of web URLs."""
    text = re.sub(r"(?<=://)[^\s/\"']+@", "", text)
    return re.sub(r"(https?://[^\s?\"']+)\?[^\s)\"']*", r"\1", text)


def changed(pinned: ObjectInfo, found: ObjectInfo) -> StorageError:
    """The error of an object that is no longer the one whose reading began."""
    return StorageError(
        f"it changed while it was read: {pinned.size:,} bytes, version {pinned.etag} before, "
        f"{found.size:,} bytes, version {found.etag} now",
        pinned.url,
        "read",
        "changed",
    )


def _local(path: str, source: str) -> Location:
    path = "/" + os.path.abspath(path).lstrip("/")  # abspath keeps two slashes at the beginning
    return Location(
        scheme="file", bucket="", key=path, url=object_url("file", "", path), source=source
    )


def _without_user(netloc: str) -> str:
    return netloc.rpartition("@")[2]
