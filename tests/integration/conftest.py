"""Real runs on local disk and a local Ray, small enough for every test."""

import io
import json
import os
import subprocess
import sys
import tarfile
import textwrap
from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from encoder.seeded import write_seeded_checkpoint

REPOSITORY = Path(__file__).parent.parent.parent
CORPORA = Path(os.environ.get("EMBEDMILL_CORPORA", REPOSITORY.parent / "shared" / "corpora"))


def write_shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def write_photo_shard(path: Path, photos: dict[str, bytes], size: int) -> Path:
    """A shard of `size` photos; which ones, its number says, which is the file's name."""
    names = list(photos)
    chosen = [names[(int(path.stem) * 5 + i) % len(names)] for i in range(size)]
    return write_shard(path, {f"{i}-{name}": photos[name] for i, name in enumerate(chosen)})


def plant(site: Path, code: str) -> None:
    """Runs code at the start of each Python whose PYTHONPATH has the folder `site` first.

    Not in Ray's processes other than workers: an import of torch in each starts a node too slowly.
    """
    only = (
        "import sys\n"
        "if 'default_worker.py' in str(sys.orig_argv) or '/ray/' not in str(sys.orig_argv):\n"
    )
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(only + textwrap.indent(code, "    "))


def read_rows(output: Path) -> list[dict]:
    """Rows of all embeddings files of a local output, in order of (shard, index)."""
    paths = sorted((output / "embeddings").glob("*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["shard"], row["index"]))


def read_rejects(output: Path) -> list[dict]:
    paths = sorted((output / "rejects").glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="session")
def photos() -> dict[str, bytes]:
    """The bundled photos, by file name."""
    folder = files("pipeline").joinpath("demo_photos")
    return {
        entry.name: entry.read_bytes()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name != "SOURCES.md"
    }


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    return write_seeded_checkpoint(tmp_path_factory.mktemp("model") / "checkpoint")


@pytest.fixture
def write_config(tmp_path, checkpoint):
    """A function that writes a run configuration below tmp_path and returns its path."""

    def write(name="run.yaml", **sections) -> Path:
        config = {
            "input": {"shards": str(tmp_path / "shards" / "*.tar")},
            "output": {"path": str(tmp_path / "out"), "dtype": "float32"},
            "model": {"checkpoint": str(checkpoint)},
            "packing": {"token_budget": 4096},
            "workers": {
                "encoders": {"num_gpus": 0, "device": "cpu"},
                "preprocessors": {"min": 1, "max": 1},
            },
        }
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values}
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config))
        return path

    return write


def embedmill(*arguments, **options) -> subprocess.CompletedProcess:
    """A finished run of the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=300,
        **options,
    )


def footer(path: Path) -> dict:
    return json.loads(pq.read_metadata(path).metadata[b"embedmill"])
