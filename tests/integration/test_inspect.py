"""`embedmill inspect` on shards, folders and single files."""

import json

import pytest

from tests.integration.conftest import embedmill, write_shard


@pytest.fixture
def shard(tmp_path, photos):
    bad = {"broken.jpg": b'{"not": "an image"}', "._x.jpg": b"mac"}
    return write_shard(tmp_path / "a.tar", dict(list(photos.items())[:6]) | bad)


def findings(*arguments):
    run = embedmill("inspect", *arguments, "--json")
    assert run.returncode == 0, run.stderr
    *images, last = [json.loads(line) for line in run.stdout.splitlines()]
    return {image["key"]: image for image in images}, last["summary"]


def test_a_shard_in_json(shard):
    images, summary = findings(shard)
    assert images["anemones"]["header"] == {
        "format": "JPEG", "mode": "RGB", "height": 307, "width": 512, "orientation": 1,
    }  # fmt: skip
    assert images["anemones"]["grid"] == [12, 21]
    assert images["broken"]["reason"] == "unknown_format"
    assert (summary["images"], summary["rejected"]) == (7, {"unknown_format": 1})
    assert summary["skipped"] == {"resource_fork": 1}
    total = sum(image["tokens"] for image in images.values())
    assert (summary["packs"], summary["packed_tokens"]) == (1, total)


def test_a_folder_and_a_file_are_images_too(tmp_path, photos):
    for name in list(photos)[:3]:
        (tmp_path / name).write_bytes(photos[name])
    images, _ = findings(tmp_path)
    assert list(images) == list(photos)[:3]
    images, _ = findings(tmp_path / "anemones.jpg", "--max-num-patches", "64")
    assert images["anemones.jpg"]["tokens"] <= 64


def test_the_table_has_the_sums(shard):
    run = embedmill("inspect", shard)
    assert run.returncode == 0, run.stderr
    assert "7 images: 6 fit, 1 rejected" in run.stdout
    assert "1 packs of at most 16,384 tokens" in run.stdout


def test_a_cut_shard_is_named_and_the_rest_is_told(shard, tmp_path):
    (tmp_path / "cut.tar").write_bytes(shard.read_bytes()[:50_000])
    run = embedmill("inspect", tmp_path / "cut.tar", shard)
    assert run.returncode == 1
    assert "FAILED" in run.stdout


def test_a_path_that_is_not_there_is_a_mistake_of_the_user(tmp_path):
    run = embedmill("inspect", tmp_path / "nothing.tar")
    assert run.returncode == 2
    assert "nothing.tar" in run.stderr
