"""Tells what becomes of every file of the corpora, and where that differs from plain Pillow.

    python benchmarks/corpus.py CORPORA_FOLDER

writes docs/corpus.csv, a line for each file, and docs/corpus.md, what it comes to, file by file and
as three shards in which the files have their own names. Plain Pillow is
ImageOps.exif_transpose(Image.open(file)).convert("RGB"), in a process of its own; what libtiff
writes to standard error comes from there.
"""

import csv
import datetime
import io
import json
import os
import resource
import sys
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from encoder.geometry import Geometry
from encoder.infer import load_encoder
from encoder.seeded import write_seeded_checkpoint
from pipeline.config import PreprocessConfig, RunConfig
from pipeline.decode import decode
from pipeline.errors import SampleError
from pipeline.image_header import probe
from pipeline.preprocess import prepare, resolve_kernel
from pipeline.records import RawSample, SampleId
from pipeline.stage import run_plain
from pipeline.storage import Storage
from pipeline.work import prepare_work
from pipeline.writer import Lease

DOCS = Path(__file__).parents[1] / "docs"
FOLDERS = ("photos", "hard", "broken")
CONFIG, DROP = PreprocessConfig(), PreprocessConfig(background="drop")
GEOMETRY = Geometry(patch_size=16, max_num_patches=256)
RULES = {
    "alpha": "alpha, transparent palette entries or a transparent colour are laid on white; Pillow "
    "shows what lies hidden under clear pixels",
    "range": "16-bit, 32-bit and float gray is scaled to 8 bits; Pillow clips it at 255",
    "format not enabled": "Pillow can decode it; the format is not enabled here",
    "missing pixels": "the JPEG lacks pixels; Pillow fills them with gray",
    "Pillow fails": "libjpeg-turbo reads what Pillow's JPEG parser does not",
}


@dataclass(slots=True, kw_only=True)
class Line:
    folder: str
    file: str
    outcome: str  # row, or the reason of the rejection
    detail: str = ""
    difference: str = ""  # a key of RULES, or nothing
    seconds: float = 0.0


def main() -> None:
    corpora = Path(sys.argv[1])
    lines = [_line(corpora, folder, name) for folder in FOLDERS for name in _names(corpora, folder)]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        paths = [corpora / line.folder / line.file for line in lines]
        for line, difference in zip(lines, pool.map(_difference, paths), strict=True):
            line.difference = difference
    _write_csv(lines)
    with tempfile.TemporaryDirectory() as folder:
        text = _report(lines, peak_mib) + _in_shards(corpora, Path(folder))
    (DOCS / "corpus.md").write_text(text)
    print(text)


def _names(corpora: Path, folder: str) -> list[str]:
    with open(corpora / folder / "INDEX.jsonl") as index:
        return [json.loads(line)["path"] for line in index]


def _line(corpora: Path, folder: str, name: str) -> Line:
    data = (corpora / folder / name).read_bytes()
    sample = RawSample(id=SampleId(shard=folder, key=name), index=0, member=name, image=data)
    line, start = Line(folder=folder, file=name, outcome="row"), time.perf_counter()
    try:
        prepare(sample, CONFIG, geometry=GEOMETRY, kernel=resolve_kernel("auto"))
    except SampleError as error:
        line.outcome, line.detail = error.reason.value, error.detail
    line.seconds = time.perf_counter() - start
    return line


def _difference(path: Path) -> str:
    """The rule by which our decision differs from plain Pillow's, proved where it is a rule."""
    data = path.read_bytes()
    expected = _by_pillow(data)
    try:
        found, dropped, mode = decode(data, CONFIG), decode(data, DROP), probe(data, CONFIG).mode
    except SampleError as error:
        if expected is None:
            return ""
        return "format not enabled" if error.reason == "unsupported_format" else "missing pixels"
    if expected is None:
        return "Pillow fails"
    if np.array_equal(found.pixels, expected):
        return ""
    if np.array_equal(dropped.pixels, expected):
        return "alpha"
    if mode.startswith(("I", "F")):
        return "range"
    raise SystemExit(f"{path.name}: no rule explains the difference")


def _by_pillow(data: bytes) -> np.ndarray | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.load()
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except Exception:  # noqa: BLE001 - whatever the file makes it raise
            return None


def _write_csv(lines: list[Line]) -> None:
    with open(DOCS / "corpus.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["folder", "file", "outcome", "detail", "differs from plain Pillow"])
        for line in lines:
            writer.writerow([line.folder, line.file, line.outcome, line.detail, line.difference])


def _report(lines: list[Line], peak_mib: float) -> str:
    slowest = max(lines, key=lambda line: line.seconds)
    parts = [
        "# The corpora, file by file\n",
        f"{len(lines):,} real image files: 175 photos, 570 odd but mostly valid ones, 288 damaged\n"
        "or hostile ones. Made by `python benchmarks/corpus.py CORPORA` on "
        f"{datetime.date.today()}, {os.cpu_count()} cores; `corpus.csv`\n"
        "has a line for each file. Default settings, one process: peak memory "
        f"{peak_mib:.0f} MiB with torch and all\nlibraries, slowest file `{slowest.file}`,\n"
        f"{slowest.seconds:.2f} s. Nothing crashed or hung, and nothing was printed.\n",
        "| outcome | " + " | ".join(FOLDERS) + " |\n|---|---|---|---|",
    ]
    outcomes = Counter((line.outcome, line.folder) for line in lines)
    for outcome in ["row", *sorted({line.outcome for line in lines} - {"row"})]:
        counts = " | ".join(str(outcomes[outcome, folder]) for folder in FOLDERS)
        parts.append(f"| {outcome} | {counts} |")
    parts.append("\n## Where plain Pillow decides otherwise\n")
    parts.append(
        'Plain Pillow: `ImageOps.exif_transpose(image).convert("RGB")`. Files of which '
        "nothing is said here have\nits bytes, or are rejected by both.\n"
    )
    parts.append("| files | difference | which |\n|---|---|---|")
    for rule, explanation in RULES.items():
        which = [line.file for line in lines if line.difference == rule]
        shown = ", ".join(f"`{name}`" for name in which[:6]) + (" ..." if len(which) > 6 else "")
        parts.append(f"| {len(which)} | {explanation} | {shown} |")
    parts.append("\n## Rejected\n\n| file | reason | detail |\n|---|---|---|")
    for line in lines:
        if line.outcome != "row":
            parts.append(f"| `{line.file}` | {line.outcome} | {line.detail.replace('|', '/')} |")
    return "\n".join(parts) + "\n"


def _in_shards(corpora: Path, folder: Path) -> str:
    """What a run over shards of these files makes of them."""
    for name in FOLDERS:
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for file in _names(corpora, name):
                tar.add(corpora / name / file, arcname=file)
    raw = {
        "input": {"shards": f"{folder}/*.tar", "key_split": "last_dot"},
        "output": {"path": str(folder / "out")},
        "model": {"checkpoint": str(write_seeded_checkpoint(folder / "checkpoint"))},
        "workers": {"encoders": {"device": "cpu"}},
    }
    config = RunConfig.model_validate(raw)
    storage = Storage(config.storage)
    plan = prepare_work(config, storage).plan
    encode = load_encoder(config.model.checkpoint, device="cpu")
    leases = [Lease(url=str(folder / f"{name}.tar")) for name in FOLDERS]
    reports = [result.report for result in run_plain(leases, plan, storage, encode)]
    parts = [
        "\n## The same files in shards\n",
        "One shard for each folder, members under their own names, `input.key_split: last_dot`. "
        "The run ended.\nEvery member belongs to a sample or is counted as skipped, and `read = "
        "embedded + rejected`. Other than\nfile by file, files of one name with several extensions "
        "are one sample (`several_images`, whose detail\nnames them), a name with another extension"
        " than an image's is no image (`no_image`), and one without a\ndot is no sample.\n",
        "| shard | members | read | embedded | rejected | skipped |\n|---|---|---|---|---|---|",
    ]
    for name, report in zip(FOLDERS, reports, strict=True):
        rejected = ", ".join(f"{reason} {n}" for reason, n in sorted(report.rejected.items()))
        skipped = ", ".join(f"{reason} {n}" for reason, n in report.skipped.items())
        parts.append(
            f"| {name} | {len(_names(corpora, name))} | {report.read} | {report.embedded} | "
            f"{rejected or 0} | {skipped or 0} |"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts.append(f"\nPeak memory of the one process that read and encoded them: {peak:.0f} MiB.")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
