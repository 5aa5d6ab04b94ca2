"""Runs that stop because too much is rejected, and what they leave."""

import pytest

from pipeline.errors import RejectionLimitError
from tests.integration.conftest import embedmill, read_rejects, read_rows, write_shard
from tests.integration.test_plain_run import run as run_plainly

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def shards(tmp_path, photos):
    """Five shards of one photo and four files that are none."""
    name = next(iter(photos))
    for number in range(5):
        members = {name: photos[name]} | {f"{i}.jpg": b"<html>not found" for i in range(3)}
        write_shard(
            tmp_path / "shards" / f"{number}.tar", members | {"z.png": b"\x89PNG\r\n\x1a\n"}
        )


@pytest.mark.slow
def test_the_share_stops_a_run_and_counts_what_it_left(shards, write_config, tmp_path):
    limits = {"max_reject_share": 0.5, "min_images_for_share": 8}
    config = write_config(limits=limits, packing={"streams_per_encoder": 1})
    first = embedmill("run", config)
    assert first.returncode == 3, first.stderr
    assert "found 8 of 10:\n  unknown_format 6, e.g. '0' in file:///" in first.stderr
    assert "\n  truncated_image 2, e.g. 'z' in file:///" in first.stderr
    assert len(read_rows(tmp_path / "out")) == 2
    again = embedmill("run", config)
    assert again.returncode == 3, again.stderr
    assert "found 12 of 15, 2 shards of earlier runs included:\n" in again.stderr
    raised = embedmill("run", config, "--set", "limits.max_reject_share=0.9")
    assert raised.returncode == 0, raised.stderr
    assert len(read_rows(tmp_path / "out")) == 5
    assert len(read_rejects(tmp_path / "out")) == 20


def test_rejects_in_a_row_stop_a_run_with_examples(shards, write_config):
    with pytest.raises(RejectionLimitError) as caught:
        run_plainly(write_config(limits={"max_consecutive_rejects": 3}))
    said = str(caught.value)
    assert said.startswith("fewer than limits.max_consecutive_rejects = 3 images in a row may be")
    assert "\n  unknown_format 3, e.g. '0' in file:///" in said
