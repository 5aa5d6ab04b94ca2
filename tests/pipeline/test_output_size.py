"""Outputs too large to be published are refused before work starts."""

import re
from dataclasses import replace

import pytest

from pipeline import output_size
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.output_size import check_output_size
from pipeline.storage import Storage
from tests.pipeline.outputs import MODEL
from tests.pipeline.tar_files import COMPRESSIONS, tar_bytes

URL = "memory://sizes/a.tar"
TOKENS = replace(MODEL, readout=replace(MODEL.readout, vectors="tokens"))
IMAGE = 19 * 512  # with its header 20 blocks of the tar


@pytest.fixture
def config():
    raw = {"input": {"shards": URL}, "output": {"path": "memory://sizes/out"}}
    return RunConfig.model_validate(raw | {"model": {"checkpoint": "seeded"}})


@pytest.fixture
def storage(config):
    storage = Storage(config.storage)
    storage.put(URL, tar_bytes([(f"{n}.jpg", bytes([n % 251 + 1]) * IMAGE) for n in range(2000)]))
    return storage


# 2,000 images of 256 tokens x 8 float32 values: 16,384,000 bytes.
@pytest.mark.parametrize(("limit", "refused"), [(13_500_000, True), (17_500_000, False)])
def test_the_size_is_estimated_from_the_first_images(config, storage, monkeypatch, limit, refused):
    monkeypatch.setattr(output_size, "MAX_SHARD_OUTPUT_BYTES", limit)
    if not refused:
        check_output_size(URL, config, TOKENS, storage)
        return
    with pytest.raises(ConfigError) as caught:
        check_output_size(URL, config, TOKENS, storage)
    said = str(caught.value)
    assert 1700 < float(re.search(r"has about ([\d,]+) images", said)[1].replace(",", "")) <= 2000
    assert "256 tokens of 8 float32 values" in said
    assert "Use smaller shards, or set output.dtype: float16" in said


def test_small_shards_are_not_read(config, storage, monkeypatch):
    monkeypatch.setattr(type(storage), "open", None)
    check_output_size(URL, config, TOKENS, storage)


def test_shards_that_cannot_be_read_are_left_to_their_lease(config, storage, monkeypatch):
    monkeypatch.setattr(output_size, "MAX_SHARD_OUTPUT_BYTES", 1000)
    check_output_size("memory://sizes/none.tar", config, TOKENS, storage)
    storage.put(URL, COMPRESSIONS["gzip"](bytes(100_000))[:50])
    check_output_size(URL, config, TOKENS, storage)
