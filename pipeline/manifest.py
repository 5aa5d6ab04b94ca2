"""What an output folder holds and which run it belongs to: names, fingerprint, `_run.json`."""

import hashlib
import json
import posixpath
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from random import randrange
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder.geometry import Geometry
from encoder.output import Readout
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError, StorageError
from pipeline.storage import Storage, canonical_url

RUN_FILE = "_run.json"
EMBEDDINGS, REJECTS, FAILED = "embeddings", "rejects", "failed"
# Versions that can matter when a figure or a vector is questioned later.
_RECORDED = ("embedmill", "torch", "numpy", "pillow", "simplejpeg", "pyarrow", "ray", "obstore")
_MAX_STEM = 80
_NAME_END = re.compile(r"-([0-9a-f]{16})\.(?:parquet|json)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the driver knows of the checkpoint before any Encoder starts."""

    checkpoint: str
    revision: str | None  # commit of a Hugging Face id
    digest: str  # sha256 over the vision tower's weights and configuration
    geometry: Geometry
    readout: Readout


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Everything that can change a vector or a row; nothing that cannot."""

    fields: Mapping[str, Any]

    @property
    def sha(self) -> str:
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def make_fingerprint(config: RunConfig, model: ModelFacts, kernel: str) -> Fingerprint:
    """The fingerprint of a resolved run. Packing, workers, attention and cluster are left out."""
    fields: dict[str, Any] = {
        "model.digest": model.digest,
        "model.revision": model.revision,
        "model.dtype": config.model_dtype,
        "output.vectors": model.readout.vectors,
        "output.layers": list(model.readout.states),
        "output.final_norm": model.readout.norm_after is not None,
        "output.normalize": model.readout.normalize,
        "output.dtype": model.readout.dtype,
        "input.key_split": config.input.key_split,
        "input.image_extensions": sorted(config.input.image_extensions),
        "input.on_truncated": config.input.on_truncated,
        "input.metadata": [column.model_dump() for column in config.input.metadata],
    }
    for key, value in config.preprocess.model_dump().items():
        fields[f"preprocess.{key}"] = value
    for key, value in asdict(model.geometry).items():
        fields[f"preprocess.{key}"] = value
    fields["preprocess.resize_kernel"] = kernel  # what auto became
    return Fingerprint(fields=fields)


def output_name(shard: str) -> str:
    """Readable stem plus 16 hex digits of the shard id's sha256: a pure function of the shard."""
    base = posixpath.basename(shard)
    stem = re.sub(r"\.(tar|tgz|tar\.\w+)$", "", base, flags=re.IGNORECASE)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._")[:_MAX_STEM] or "shard"
    return f"{stem}-{_hash_hex(shard)}"


def shard_number(shard: str) -> int:
    """The 64 bits of a shard's id that its output's name ends with."""
    return int(_hash_hex(shard), 16)


def named_number(url: str) -> int | None:
    """The `shard_number` of the shard whose embeddings or failure this is; None for others."""
    match = _NAME_END.search(url)
    return int(match.group(1), 16) if match else None


def is_in_sorted(numbers: NDArray[np.uint64], order: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """As np.isin with a sorted array, in a quarter of its memory."""
    if not order.size:
        return np.zeros(len(numbers), dtype=np.bool_)
    places = np.searchsorted(order, numbers)
    np.minimum(places, len(order) - 1, out=places)
    found: NDArray[np.bool_] = order[places] == numbers
    return found


def embeddings_url(output: str, shard: str) -> str:
    return f"{output}/{EMBEDDINGS}/{output_name(shard)}.parquet"


def rejects_url(output: str, shard: str, attempt: str) -> str:
    return f"{output}/{REJECTS}/{output_name(shard)}.{attempt}.parquet"


def failed_url(output: str, shard: str) -> str:
    return f"{output}/{FAILED}/{output_name(shard)}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The embeddings objects that are there: 8 bytes for each."""

    numbers: "array[int]"  # what `shard_number` says of their shards
    sample: list[str]  # URLs of some, each as likely as any other


def list_committed(storage: Storage, output: str, *, sample: int = 256) -> Committed:
    """What is done, from one listing."""
    numbers, picked = array("Q"), list[str]()
    for info in storage.list(f"{output}/{EMBEDDINGS}/"):
        if (number := named_number(info.url)) is None:
            continue
        numbers.append(number)
        if len(picked) < sample:
            picked.append(info.url)
        elif (place := randrange(len(numbers))) < sample:  # Vitter's algorithm R
            picked[place] = info.url
    return Committed(numbers=numbers, sample=picked)


def pending_shards(done: "array[int]", urls: Sequence[str]) -> list[str]:
    """The shard URLs that are not done, in their order.

    Shards are compared by the 64 bits in their names: some 40 bytes of memory each, not 300.
    Raises ConfigError where two shards would write one output.
    """
    names = np.fromiter((shard_number(canonical_url(url)) for url in urls), np.uint64)
    order = np.sort(names)
    if (double := order[1:][order[1:] == order[:-1]]).size:
        name = output_name(canonical_url(urls[int(np.argmax(names == double[0]))]))
        raise ConfigError(f"two input shards have one output name: {name}")
    is_done = is_in_sorted(names, np.sort(np.frombuffer(done, dtype=np.uint64)))
    return [url for url, there in zip(urls, is_done, strict=True) if not there]


def open_run(
    storage: Storage, output: str, config: RunConfig, model: ModelFacts, fingerprint: Fingerprint
) -> bool:
    """True where the store creates objects only where none is; writes `_run.json` if there is none.

    It is False where the store let us create `_run.json` twice. Raises OutputError where the folder
    belongs to a run with another fingerprint.
    """
    record = {
        "fingerprint": fingerprint.sha,
        "fields": dict(fingerprint.fields),
        "model": {
            "checkpoint": model.checkpoint,
            "revision": model.revision,
            "digest": model.digest,
            "geometry": asdict(model.geometry),
            "readout": asdict(model.readout),
        },
        "config": config.model_dump(mode="json"),
        "versions": recorded_versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    url, text = f"{output}/{RUN_FILE}", json.dumps(record, indent=2).encode()
    if storage.create(url, text):
        return not storage.create(url, text)
    check_output(storage, output, fingerprint)
    return True


def check_output(storage: Storage, output: str, fingerprint: Fingerprint) -> bool:
    """True when the folder belongs to this run, False when it belongs to none yet.

    Raises OutputError with the differing fields where it belongs to another.
    """
    try:
        stored = json.loads(storage.read(f"{output}/{RUN_FILE}"))
    except StorageError as error:
        if error.kind == "not_found":
            return False
        raise
    if stored["fingerprint"] == fingerprint.sha:
        return True
    old, new = stored["fields"], fingerprint.fields
    differing = [
        f"  {name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    raise OutputError(
        f"{output} holds embeddings of another run: fingerprint {stored['fingerprint'][:16]} "
        f"there, {fingerprint.sha[:16]} now.\n" + "\n".join(differing) + "\n"
        "Vectors of two kinds must not mix: choose another output.path, or set these fields back."
    )


def recorded_versions() -> dict[str, str]:
    return {name: version(name) for name in _RECORDED}


def _hash_hex(shard: str) -> str:
    return hashlib.sha256(shard.encode("utf-8", "surrogatepass")).hexdigest()[:16]
