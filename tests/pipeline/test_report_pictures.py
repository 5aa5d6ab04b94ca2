"""Pictures come from the input as it is now, and what is missing is told, not raised."""

import base64
import gzip
import io
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from pipeline.config import RunConfig
from pipeline.report_pictures import GONE, TOO_LATE, Picture, Target, read_pictures
from pipeline.storage import Storage
from tests.pipeline.tar_files import tar_bytes

CONFIG = RunConfig.model_validate(
    {"input": {"shards": "-"}, "output": {"path": "-"}, "model": {"checkpoint": "-"}}
)
SHARD = "s3://in/a.tar"


def photo(name):
    return files("pipeline").joinpath("demo_photos").joinpath(name).read_bytes()


def png(width, height, colour, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def storage():
    return Storage(CONFIG.storage)


@pytest.fixture(params=["file", "memory"])
def put(request, tmp_path, storage):
    """A function that stores a shard and returns its URL."""

    def put(data):
        place = "memory:///" if request.param == "memory" else "file:///"
        url = f"{place}{str(tmp_path).lstrip('/')}/a.tar"
        storage.put(url, data)
        return url

    return put


def pictures_of(storage, url, *targets, **options):
    return read_pictures(storage, targets, {SHARD: url}, CONFIG, **options)


def opened(picture: Picture) -> Image.Image:
    assert picture.url.startswith("data:image/webp;base64,"), picture
    image = Image.open(io.BytesIO(base64.b64decode(picture.url.partition(",")[2])))
    assert image.size == (picture.width, picture.height)
    return image.convert("RGB")


def row(key):
    return Target(shard=SHARD, key=key)


def reject(member):
    return Target(shard=SHARD, key=member.partition(".")[0], member=member)


def test_rows_are_found_by_key_and_rejects_by_member(storage, put):
    red, blue, cut = png(400, 100, "red"), png(10, 30, "blue"), photo("falcon.jpg")[:20_000]
    members = [("x/r.json", b"{}"), ("x/r.png", red), ("b.png", blue), ("c.jpg", cut)]
    targets = row("x/r"), reject("b.png"), reject("c.jpg")
    found = pictures_of(storage, put(tar_bytes(members)), *targets)
    assert opened(found[targets[0]]).size == (168, 42)
    assert opened(found[targets[0]]).getpixel((20, 20))[0] > 240
    assert opened(found[targets[1]]).size == (10, 30)
    assert opened(found[targets[2]]).size == (168, 112)  # with gray where the file ends


def test_what_is_no_picture_says_why(storage, put):
    members = [("a.jpg", b"not an image"), ("b.jpg", photo("falcon.jpg"))]
    found = pictures_of(storage, put(tar_bytes(members)), row("a"), row("b"), row("c"))
    assert "not an image" in found[row("a")].problem
    assert found[row("b")].url
    assert found[row("c")] == Picture(problem=GONE)


def test_an_image_of_too_many_pixels_is_not_decoded(storage, put):
    big = png(8_000, 8_001, 1, mode="1")
    found = pictures_of(storage, put(tar_bytes([("a.png", big)])), row("a"))
    assert "64,000,000" in found[row("a")].problem


def test_of_a_damaged_shard_the_first_images_are_there(storage, put):
    whole = tar_bytes([("a.png", png(9, 9, "red")), ("b.png", png(9, 9, "red"))])
    found = pictures_of(storage, put(whole[:1100]), row("a"), row("b"))
    assert found[row("a")].url
    assert found[row("b")].problem.startswith("its shard: ")


def test_compressed_shards_are_read(storage, put):
    url = put(gzip.compress(tar_bytes([("a.png", png(9, 9, "red"))])))
    assert pictures_of(storage, url, row("a"))[row("a")].url


def test_a_shard_that_is_gone_is_told(storage, tmp_path):
    found = pictures_of(storage, f"file://{tmp_path}/none.tar", row("a"))
    assert found[row("a")] == Picture(problem="its shard is no longer there")


def test_patience_ends(storage, put):
    url = put(tar_bytes([("a.png", png(9, 9, "red"))]))
    found = pictures_of(storage, url, row("a"), patience_s=-1)
    assert found[row("a")] == Picture(problem=TOO_LATE)


def test_a_picture_is_small_whatever_it_shows(storage, put):
    noise = np.random.default_rng(0).integers(0, 256, (168, 168, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    found = pictures_of(storage, put(tar_bytes([("a.png", buffer.getvalue())])), row("a"))
    assert len(found[row("a")].url) < 25_000
