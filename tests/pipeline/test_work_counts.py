"""What an image may cost, counted in copies and bytes: a copy too many fails here without a timer."""

import io
import pickle
import tarfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from encoder.geometry import Geometry
from pipeline.config import InputConfig, PreprocessConfig, StorageConfig
from pipeline.packing import make_pack
from pipeline.preprocess import prepare
from pipeline.records import PatchedImage, RawSample, SampleId
from pipeline.resize import has_uint8_kernel, resize
from pipeline.shards import ShardSamples
from pipeline.storage import Storage

PHOTOS = Path(__file__).parents[2] / "pipeline" / "demo_photos"
FALCON = (PHOTOS / "falcon.jpg").read_bytes()  # 768 x 768 px
CONFIG = PreprocessConfig()
GEOMETRY = Geometry(patch_size=16, max_num_patches=1024)
SMALL = 64 << 10  # bytes; a copy of the photo has 1.7 MB, of its patches 0.8 MB
KERNEL = "torch" if has_uint8_kernel() else "pillow"
needs_torch_kernel = pytest.mark.skipif(
    not has_uint8_kernel(), reason="this CPU has no uint8 kernel in torch"
)


class Operations(TorchDispatchMode):
    """Counts the operations of torch, those inside others included."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def sample(image=FALCON, key="a"):
    return RawSample(id=SampleId(shard="s", key=key), index=0, member="a.jpg", image=image)


def peak_of(function):
    """(result, bytes of Python and NumPy that lived at once, the result's included)."""
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def images(count, rows=256):
    rng = np.random.default_rng(0)
    return [
        PatchedImage(
            id=SampleId(shard="file:///data/shard.tar", key=f"{index:09d}"),
            index=index,
            pixel_values=rng.integers(0, 256, (rows, 768), np.uint8),
            grid=(16, rows // 16),
            source_size=(16, rows // 16),
        )
        for index in range(count)
    ]


@needs_torch_kernel
def test_torch_takes_and_gives_pixels_as_they_lie_in_memory():
    image = np.zeros((60, 90, 3), np.uint8)
    with Operations() as operations:
        resized = resize(image, 32, 48, "torch")
    assert resized.flags.c_contiguous, "planes are three times the work, and patchify gathers bytes"
    copies = {"clone", "copy_", "_to_copy", "contiguous", "empty_like", "to"} & set(
        operations.names
    )
    assert not copies


def test_preparing_allocates_the_patches_and_nothing_of_the_size_of_a_photo():
    def run():
        return prepare(sample(), CONFIG, geometry=GEOMETRY, kernel=KERNEL)

    run()  # the buffer for pixels is kept from image to image
    image, peak = peak_of(run)
    resized = 0 if KERNEL == "torch" else image.pixel_values.nbytes  # torch's is not seen here
    assert peak < image.pixel_values.nbytes + resized + SMALL


def test_a_pack_copies_each_patch_once():
    parts = images(32)
    pack, peak = peak_of(lambda: make_pack(parts))
    assert peak < pack.batch.pixel_values.nbytes + SMALL


def test_pixels_travel_outside_of_the_pickle_and_the_rest_is_under_1_percent():
    pack = make_pack(images(64))
    buffers = []
    inside = pickle.dumps(pack, protocol=5, buffer_callback=buffers.append)
    sizes = sorted(len(buffer.raw()) for buffer in buffers)
    assert sizes[-1] == pack.batch.pixel_values.nbytes == 64 * 256 * 768
    assert len(inside) + sum(sizes[:-1]) < 0.01 * sizes[-1]
    arrived = pickle.loads(inside, buffers=buffers)
    assert np.shares_memory(arrived.batch.pixel_values, pack.batch.pixel_values)


def test_reading_holds_a_chunk_and_one_image(tmp_path):
    path, count = tmp_path / "s.tar", 32
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for index in range(count):
            member = tarfile.TarInfo(f"{index}.jpg")
            member.size = len(FALCON)
            tar.addfile(member, io.BytesIO(FALCON))

    def run():
        found = 0
        with Storage(StorageConfig(range_mib=1, read_ahead=0)).open(str(path)) as stream:
            for _ in ShardSamples(
                stream,
                shard="s",
                config=InputConfig(shards=str(path)),
                size=None,
                max_image_bytes=1 << 30,
            ):
                found += 1
        return found

    found, peak = peak_of(run)
    assert found == count
    assert peak < 3 * len(FALCON) + (3 << 20) < path.stat().st_size  # images, and ranges of 1 MiB
