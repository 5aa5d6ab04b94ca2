"""Small pictures of samples, from the input shards where they are still readable."""

import base64
import io
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from PIL import Image

from pipeline.compression import ByteSource
from pipeline.config import PreprocessConfig, RunConfig
from pipeline.decode import decode
from pipeline.errors import ConfigError, SampleError, ShardError, StorageError
from pipeline.keys import is_image, printable, skip_reason, split_name
from pipeline.parallel import in_threads
from pipeline.storage import Storage
from pipeline.tar import TarReader

_THREADS = 8  # each waits for storage
_SIDE = 168  # px of the longer side, shown at 84 to 112
_QUALITY = 70  # pure noise takes 18 kB, photos of the corpora 2 kB on average
_MAX_PIXELS = 64_000_000  # an image of more is not decoded for a picture: some 450 MB
_decoding = threading.Lock()  # Pillow's options are globals of the process

TOO_LATE = "not looked for: reading the input took too long"
GONE = "not found in its shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whose picture is wanted: a row by its key, a reject by its member."""

    shard: str
    key: str
    member: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A data: URL, or why there is none."""

    url: str = ""
    width: int = 0  # px, of the picture
    height: int = 0
    problem: str = ""


def read_pictures(
    storage: Storage,
    targets: Collection[Target],
    sources: Mapping[str, str],
    config: RunConfig,
    *,
    patience_s: float = 60.0,
) -> dict[Target, Picture]:
    """A picture of each target. `sources` are URLs to read shards at, by their id.

    A shard is read up to the last of its targets, and what takes longer than `patience_s` in all
    is left out. Nothing raises: a picture says what is wrong.
    """
    by_shard: dict[str, list[Target]] = {}
    for target in targets:
        by_shard.setdefault(target.shard, []).append(target)
    deadline = time.monotonic() + patience_s
    read = partial(_read_shard, storage, sources, config, deadline)
    pictures: dict[Target, Picture] = {}
    for found in in_threads(read, by_shard.items(), threads=_THREADS):
        pictures |= found
    return pictures


def _read_shard(
    storage: Storage,
    sources: Mapping[str, str],
    config: RunConfig,
    deadline: float,
    item: tuple[str, list[Target]],
) -> dict[Target, Picture]:
    shard, targets = item
    found: dict[Target, Picture] = {}
    problem = GONE
    try:
        for target, data in _images(storage, sources.get(shard, shard), targets, config, deadline):
            found[target] = _picture(data, config.preprocess)
        if time.monotonic() > deadline:
            problem = TOO_LATE
    except StorageError as error:
        gone = error.kind == "not_found"
        problem = "its shard is no longer there" if gone else f"its shard: {error.message}"
    except (ShardError, ConfigError) as error:
        problem = f"its shard: {error}"
    return {target: found.get(target) or Picture(problem=problem) for target in targets}


def _images(
    storage: Storage, url: str, targets: list[Target], config: RunConfig, deadline: float
) -> Iterator[tuple[Target, bytes]]:
    """Yields targets and the bytes of their images, until all are there or it is late."""
    left = set(targets)
    suffixes = frozenset(config.input.image_extensions)
    if time.monotonic() > deadline:
        return
    with storage.open(url) as stream:
        tar = TarReader(ByteSource(stream, url))
        for member in tar:
            place = split_name(member.name, config.input.key_split)
            if member.kind != "file" or skip_reason(member.name) is not None or place is None:
                continue
            key, name = printable(place[0]), printable(member.name)
            if not is_image(place[1], suffixes):
                continue
            matching = [t for t in left if t.member == name or (not t.member and t.key == key)]
            if matching and member.size <= config.preprocess.max_image_bytes:
                data = tar.read_data()
                yield from ((target, data) for target in matching)
            left.difference_update(matching)
            if not left or time.monotonic() > deadline:
                return


def _picture(data: bytes, config: PreprocessConfig) -> Picture:
    lenient = {"truncated_images": "accept", "decode": "reduced"}
    pixels = min(config.max_image_pixels, _MAX_PIXELS)
    config = config.model_copy(update={**lenient, "max_image_pixels": pixels})
    with _decoding:
        try:
            decoded = decode(data, config, needed=lambda height, width: (_SIDE, _SIDE))
        except SampleError as error:
            return Picture(problem=error.detail)
        image = Image.fromarray(decoded.pixels)
        image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=_QUALITY)
    url = f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Picture(url=url, width=image.width, height=image.height)
