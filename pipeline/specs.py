"""Shard specifications, as people type them, to the list of shards."""

import glob
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote

import numpy as np
from braceexpand import braceexpand

from pipeline.config import InputConfig
from pipeline.errors import ConfigError
from pipeline.storage import Storage
from pipeline.urls import canonical_url, locate, without_secrets

MAX_SHARDS = 2_000_000  # 20 billion images in shards of 10,000; a slip must not fill the memory
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?\}")
_MAGIC = re.compile(r"[*?\[]")
_QUERY = re.compile(r"\?[\w.-]+=")  # of a signed URL; any other ? is a wildcard
_SHOWN = 3  # examples in a message


def list_shards(config: InputConfig, storage: Storage) -> list[str]:
    """URLs of the shards that the configuration names, in the order it names them, each once.

    Each is its own canonical shard id, but for URLs with a query or user info (signed ones): these
    are as they were given, and `canonical_url` makes the id. Matches of a glob are sorted. Raises
    ConfigError where a specification matches nothing, names local files that do not exist, or
    cannot be expanded; StorageError where a listing fails.
    """
    shards: list[str] = []
    for spec in _specs(config, storage):
        shards += _expand(spec, storage)
        if len(shards) > MAX_SHARDS:
            shards = _each_once(shards)
        if len(shards) > MAX_SHARDS:
            shown = without_secrets(spec)
            raise ConfigError(f"at most {MAX_SHARDS:,} shards in one run, up to {shown!r} are more")
    return _each_once(shards)


def name_shards(specs: Iterable[str], storage: Storage) -> list[str]:
    """The canonical ids of shards, which need not exist any more where they are named in full.

    Raises ConfigError and StorageError as `list_shards` does.
    """
    shards: list[str] = []
    for spec in specs:
        for pattern in _braces(spec):
            literal = not _MAGIC.search(_QUERY.sub("", pattern)) or os.path.isfile(pattern)
            shards += [pattern] if literal else _expand(pattern, storage)
    return [canonical_url(shard) for shard in _each_once(shards)]


def _each_once(shards: list[str]) -> list[str]:
    """The shards without later doubles; 8 bytes of memory each where there are none."""
    numbers = np.fromiter((hash(canonical_url(s)) for s in shards), np.int64, len(shards))
    numbers.sort()
    if (numbers[1:] != numbers[:-1]).all():
        return shards
    first: dict[str, str] = {}
    for shard in shards:
        first.setdefault(canonical_url(shard), shard)
    return list(first.values())


def _specs(config: InputConfig, storage: Storage) -> Iterator[str]:
    yield from [config.shards] if isinstance(config.shards, str) else config.shards
    if config.shards_file is None:
        return
    content = io.BytesIO(storage.read(config.shards_file))
    found = False
    for line in io.TextIOWrapper(content, "utf-8-sig", "surrogateescape"):
        spec = line.strip()
        if spec and not spec.startswith("#"):
            found = True
            yield spec
    if not found:
        raise ConfigError(f"input.shards_file must name at least one shard: {config.shards_file}")


def _expand(spec: str, storage: Storage) -> Iterator[str]:
    """Yields the URLs of one specification. A path that exists as it is written means itself."""
    if spec.startswith("pipe:"):
        raise ConfigError(
            f"{without_secrets(spec)!r}: commands are not run, because a pipe hides how it ended; "
            f"write the URL (s3://, gs://, az://, https://) instead"
        )
    if os.path.isfile(spec):
        yield canonical_url(spec)
        return
    missing: list[str] = []
    for pattern in _braces(spec):
        path = _local_path(pattern)
        if path is None:
            yield from _remote(pattern, storage)
        elif os.path.isfile(path):
            yield canonical_url(path)
        elif _MAGIC.search(path):
            yield from _local_glob(path)
        else:
            missing.append(path)
    if missing:
        raise ConfigError(_missing(spec, missing))


def _braces(spec: str) -> Iterator[str]:
    if "{" not in spec:
        yield spec
        return
    too_many = f"{without_secrets(spec)!r} expands to more than {MAX_SHARDS:,} shards"
    try:
        for first, last, step in _RANGE.findall(spec):  # braceexpand makes the whole of each range
            if abs(int(last) - int(first)) // (int(step or 1) or 1) >= MAX_SHARDS:
                raise ConfigError(too_many)
        for number, pattern in enumerate(braceexpand(spec)):
            if number >= MAX_SHARDS:
                raise ConfigError(too_many)
            yield pattern
    except ValueError as error:
        raise ConfigError(
            f"{without_secrets(spec)!r}: {str(error).split(':')[0].lower()}; a range of shards is "
            f"written {{00000..00099}}"
        ) from error


def _local_path(pattern: str) -> str | None:
    """The path of a plain path or file URL; None for what lies elsewhere."""
    if pattern.startswith("file://"):
        return unquote(pattern.removeprefix("file://").removeprefix("localhost"))
    return None if "://" in pattern else os.path.expanduser(pattern)


def _local_glob(path: str) -> list[str]:
    found = sorted(p for p in glob.iglob(path, recursive=True) if os.path.isfile(p))
    if not found:
        folder = os.path.abspath(_folder(path))
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
        raise ConfigError(_no_match(path, folder, names))
    return [canonical_url(name) for name in found]


def _remote(pattern: str, storage: Storage) -> list[str]:
    scheme, _, rest = pattern.partition("://")
    bucket, _, key = rest.partition("/")
    if query := _QUERY.search(key):
        key = key[: query.start()]
    if scheme in ("http", "https") and _MAGIC.search(key):
        raise ConfigError(
            f"{without_secrets(pattern)}: an HTTP server cannot be listed; write a brace range or "
            f"a list of URLs (input.shards_file) in place of *, ? and [...]"
        )
    if _MAGIC.search(key):
        return _remote_glob(scheme, bucket, unquote(key), storage)
    url = canonical_url(pattern)
    return [pattern if query or "@" in bucket else url]


def _remote_glob(scheme: str, bucket: str, key: str, storage: Storage) -> list[str]:
    folder = f"{scheme}://{bucket}/{quote(_folder(key))}"
    patterns = key.split("/")
    urls: list[str] = []
    others: list[str] = []
    for info in storage.list(folder):
        parts = locate(info.url).key.split("/")
        if _matches(parts, patterns):
            urls.append(info.url)
        elif len(others) <= _SHOWN:
            others.append(parts[-1])
    if not urls:
        raise ConfigError(_no_match(f"{scheme}://{bucket}/{key}", folder, others))
    urls.sort()
    return urls


def _folder(path: str) -> str:
    """What stands before the path's first part with a wildcard."""
    magic = _MAGIC.search(path)
    return path[: path.rfind("/", 0, magic.start() if magic else None) + 1]


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """As glob does: wildcards stay inside one folder and match no leading dot, ** crosses them."""
    if not patterns:
        return not parts
    if patterns[0] == "**" and _matches(parts, patterns[1:] or ["*"]):
        return True
    if not parts or (parts[0].startswith(".") and not patterns[0].startswith(".")):
        return False
    if patterns[0] == "**":
        return _matches(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


def _no_match(pattern: str, folder: str, names: list[str] | None) -> str:
    if names is None:
        there = "which does not exist"
    elif not names:
        there = "which is empty"
    else:
        there = f"which has {', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
    return f"no shard matches {pattern!r}: looked in {folder}, {there}"


def _missing(spec: str, missing: list[str]) -> str:
    shown = ", ".join(os.path.abspath(path) for path in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
    if os.path.isdir(missing[0]):
        return f"{spec!r} is a folder; write {os.path.join(missing[0], '*.tar')!r} for its shards"
    return f"{spec!r} must name files that exist; not found: {shown}{more}"
