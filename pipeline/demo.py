"""The embedded demo: bundled photos as shards, and a small checkpoint with untrained weights."""

import io
import tarfile
from importlib.resources import files
from pathlib import Path

from encoder.seeded import write_seeded_checkpoint

_PHOTOS_PER_SHARD = 8


def write_demo(folder: Path) -> None:
    """None; writes shards/ and checkpoint/ below the folder, the same bytes every time."""
    bundled = files("pipeline").joinpath("demo_photos").iterdir()
    photos = sorted((e for e in bundled if e.name != "SOURCES.md"), key=lambda e: e.name)
    shards = folder / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(photos), _PHOTOS_PER_SHARD):
        path = shards / f"{start // _PHOTOS_PER_SHARD:05d}.tar"
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for photo in photos[start : start + _PHOTOS_PER_SHARD]:
                data = photo.read_bytes()
                member = tarfile.TarInfo(photo.name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    write_seeded_checkpoint(folder / "checkpoint")
