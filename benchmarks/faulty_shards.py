"""Faulty shards, read by Ray Data's read_webdataset and by embedmill, side by side.

    python benchmarks/faulty_shards.py

builds every shard in a temporary folder, reads each with both, and writes docs/faulty-shards.md.
"""

import datetime
import logging
import os
import platform
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import ray
from faulty_cases import Case, cases
from throttling import throttled_filesystem, throttled_server

from encoder.geometry import Geometry
from pipeline.config import InputConfig, PackingConfig, PreprocessConfig, StorageConfig
from pipeline.inspection import Summary, inspect_images
from pipeline.storage import Storage

DOCS = Path(__file__).parents[1] / "docs"


# --- Ray Data ----------------------------------------------------------------------------------


def read_ray(case: Case, path: Path, max_errored_blocks: int) -> str:
    ray.data.DataContext.get_current().max_errored_blocks = max_errored_blocks
    filesystem = None
    if case.fail_at is not None:
        filesystem = throttled_filesystem(path, case.fail_at)
    try:
        rows = ray.data.read_webdataset(str(path), filesystem=filesystem).take_all()
    except Exception as error:  # noqa: BLE001  whatever it raises is the finding
        return f"job fails: {root_cause(error)}"
    if case.fail_at is not None and not Path(f"{path}.throttled").exists():
        raise RuntimeError(f"no read of byte {case.fail_at}: Ray Data was never throttled")
    found = Counter(describe_row(row) for row in rows)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.items() if kind != "decoded")
    return f"{len(rows):,} rows" + (f", {kinds}" if kinds else "")


def describe_row(row: dict) -> str:
    images = [
        value
        for key, value in row.items()
        if key.split(".")[-1].lower() in ("jpg", "jpeg", "png", "webp")
        and isinstance(value, bytes | np.ndarray)
    ]
    if not images:
        return "without an image"
    if len(images) > 1:
        return f"of {len(images)} images merged"
    return "decoded" if isinstance(images[0], np.ndarray) else "as raw bytes"


def root_cause(error: BaseException) -> str:
    """The type of the exception that was raised first, and the beginning of its message."""
    lines = [line.strip() for line in str(error).splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    text = errors[-1] if errors else type(error).__name__
    return shortened(re.sub(r"/\S*/| at 0x\w+", "", text))


def shortened(text: str) -> str:
    text = text.replace("|", "/").replace("`", "'")
    return text if len(text) <= 90 else text[:87] + "..."


# --- embedmill ---------------------------------------------------------------------------------


def read_embedmill(case: Case, path: Path) -> str:
    if case.fail_at is None:
        return inspect_shard(case, str(path))
    with throttled_server(case.data, case.fail_at) as url:
        return inspect_shard(case, url)


def inspect_shard(case: Case, url: str) -> str:
    summary = Summary()
    findings = inspect_images(
        [url],
        inputs=InputConfig(shards=url, **case.inputs),
        preprocess=PreprocessConfig(),
        packing=PackingConfig(),
        geometry=Geometry(patch_size=16, max_num_patches=256),
        storage=Storage(StorageConfig(range_mib=1, http={"allow_http": True})),
        summary=summary,
    )
    rows = sum(finding.grid is not None for finding in findings)
    if summary.failed:
        (message,) = summary.failed.values()
        return "shard fails: " + shortened(re.sub(r" \((at|before) byte.*", "", message))
    counts = [f"{count} rejected: `{reason}`" for reason, count in summary.rejected.items()]
    counts += [f"{count} `{name}` skipped" for name, count in summary.skipped.items()]
    counts += [f"`{name}` {count}" for name, count in summary.warnings.items()]
    return "; ".join([f"{rows:,} rows", *counts])


# --- the table ---------------------------------------------------------------------------------


def measure(case: Case, folder: Path) -> str:
    path = folder / case.name
    path.write_bytes(case.data)
    readers: list[Callable[[], str]] = [
        lambda: read_ray(case, path, 0),
        lambda: read_ray(case, path, -1),
        lambda: read_embedmill(case, path),
    ]
    cells = [case.fault, f"{case.images:,}", *(read() for read in readers)]
    print(" | ".join(cells), flush=True)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=300 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(case, Path(folder)) for case in cases()]
    text = INTRODUCTION.format(
        ray=ray.__version__,
        python=platform.python_version(),
        today=datetime.date.today().isoformat(),
    )
    (DOCS / "faulty-shards.md").write_text(text + "\n".join(rows) + "\n")


INTRODUCTION = """# Faulty shards

What Ray Data {ray} `read_webdataset` and embedmill make of the same shards. Ray Data runs with its
defaults, and with `max_errored_blocks=-1`, which drops the blocks that fail and goes on; a shard
is one block. "good" counts the images that are whole in the shard. embedmill runs with its
defaults unless the line says otherwise; a shard that fails publishes nothing, and the run ends with
exit code 1 and the message in `failed/`. What is rejected is listed in `rejects/`.

Written by `python benchmarks/faulty_shards.py` (Python {python}, {today}). In the last lines Ray
Data reads a file whose second read of 32 MiB, its default size, raises `AWS Error SLOW_DOWN` once,
one of the errors that it tries again; embedmill reads from a web server that answers 503 once. Ray
Data opens the tar again in the middle of the stream: where a header happens to be there, it skips
as many members as it had before, and loses them without an error.

| fault | good | Ray Data | Ray Data, `max_errored_blocks=-1` | embedmill |
|---|---|---|---|---|
"""

if __name__ == "__main__":
    main()
