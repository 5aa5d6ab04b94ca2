"""`embedmill verify` as people type it, over the output of a real run."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from encoder.config import CheckpointError
from pipeline.cli import app
from pipeline.errors import ConfigError, OutputError
from pipeline.footer import FOOTER_KEY
from pipeline.reembed import compare_sample
from pipeline.run_record import open_output
from pipeline.verify import input_shards, verify_output
from tests.integration.conftest import embedmill, write_shard
from tests.integration.test_plain_run import run


@pytest.fixture
def shards(tmp_path, photos):
    names = list(photos)
    bad = {"broken.jpg": b'{"not": "an image"}'}
    write_shard(tmp_path / "shards" / "a.tar", {n: photos[n] for n in names[:4]} | bad)
    write_shard(tmp_path / "shards" / "b.tar", {n: photos[n] for n in names[4:8]})


@pytest.fixture
def output(shards, write_config, tmp_path):
    """The output of a finished run."""
    run(write_config())
    return tmp_path / "out"


def verify(*arguments):
    """`embedmill verify` in this process; what it raises is in `exception`."""
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def sampled(output, count=8):
    storage, url, record = open_output(str(output), None)
    inputs, _ = input_shards(storage, record, specs=None, config=None)
    report, picked = verify_output(storage, url, record, inputs, sample=count)
    compare_sample(storage, url, record, picked, inputs, report)
    return report


def swap_vectors(path):
    """Exchanges the vectors of the first two rows: all of it stays plausible but the images."""
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    vectors = np.stack(table.column("embedding").to_numpy(zero_copy_only=False))
    vectors[[0, 1]] = vectors[[1, 0]]
    field = table.schema.field("embedding")
    flat = pa.array(vectors.reshape(-1))
    array = pa.FixedSizeListArray.from_arrays(flat, type=field.type)
    table = table.set_column(table.schema.get_field_index("embedding"), field, array)
    table = table.replace_schema_metadata({FOOTER_KEY: metadata[FOOTER_KEY]})
    pq.write_table(table, path)


def test_a_good_output_ends_with_0_from_its_record_alone(output):
    done = embedmill("verify", output, "--sample", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 shards, 9 images read = 8 rows + 1 rejected (unknown_format 1)" in done.stdout
    assert "3 rows computed again" in done.stdout


def test_a_wrong_output_ends_with_1_and_says_what_and_where(output):
    (gone,) = (output / "embeddings").glob("a-*.parquet")
    gone.unlink()
    table = verify(output)
    assert table.exit_code == 1
    assert "/shards/a.tar: it has no output" in table.stdout
    machines = verify(output, "--json")
    assert machines.exit_code == 1
    report = json.loads(machines.stdout)
    assert report["ok"] is False
    assert report["counts"] == {"missing": 1}
    (finding,) = report["findings"]
    assert finding["check"] == "missing"
    assert finding["subject"].endswith("/shards/a.tar")


def test_rows_computed_again_are_the_same(output):
    report = sampled(output)
    assert report.ok, report.findings
    assert report.sampled == 8
    assert report.worst < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16"},
        {"vectors": "tokens", "dtype": "float32"},
        {"vectors": "mean", "layers": [-2], "normalize": False, "dtype": "float16"},
    ],
)
def test_all_kinds_of_output_can_be_computed_again(shards, write_config, tmp_path, settings):
    run(write_config(output=settings))
    report = sampled(tmp_path / "out")
    assert report.ok, report.findings
    assert report.sampled == 8
    assert report.worst < 1e-3


def test_swapped_vectors_are_found_by_computing_them_again(output):
    (path,) = (output / "embeddings").glob("a-*.parquet")
    swap_vectors(path)
    report = sampled(output)
    assert dict(report.counts) == {"sample": 2}
    assert all("off by" in finding.detail for finding in report.findings)
    assert report.worst > 0.1


def test_input_that_changed_or_went_is_told(output, tmp_path, photos):
    names = list(photos)
    write_shard(tmp_path / "shards" / "a.tar", {n: photos[n] for n in [names[9], *names[1:3]]})
    details = {finding.detail for finding in sampled(output).findings}
    assert (
        f"'{names[0].split('.')[0]}': the shard has '{names[9].split('.')[0]}' in its place now"
        in details
    )
    assert f"'{names[3].split('.')[0]}': the shard has no such sample now" in details
    (tmp_path / "shards" / "b.tar").unlink()
    report = sampled(output)
    assert any(
        "there is no such" in finding.detail or "No such file" in finding.detail
        for finding in report.findings
    )
    assert report.counts["surplus"] == 1


def test_input_that_is_no_longer_known_is_not_compared(output, tmp_path):
    shutil.rmtree(tmp_path / "shards")
    done = verify(output)
    assert done.exit_code == 0, done.stdout
    assert "not compared with the input: no shard matches" in done.stdout
    given = verify(output, "--input", f"{tmp_path}/shards/*.tar")
    assert isinstance(given.exception, ConfigError)


def test_input_may_be_named(output, tmp_path):
    config = tmp_path / "run.yaml"
    assert verify(output, "--config", config).exit_code == 0
    one = verify(output, "--input", tmp_path / "shards" / "a.tar")
    assert one.exit_code == 1
    assert "/shards/b.tar: it is no input shard" in one.stdout
    both = verify(output, "--config", config, "--input", "x.tar")
    assert isinstance(both.exception, ConfigError)


def test_other_weights_in_the_checkpoint_are_refused(output, tmp_path, checkpoint):
    run_file = output / "_run.json"
    record = json.loads(run_file.read_text())
    record["model"]["digest"] = "0" * 64
    run_file.write_text(json.dumps(record))
    done = verify(output, "--sample", 1)
    assert isinstance(done.exception, CheckpointError)
    assert "the weights must be the run's on every machine" in str(done.exception)


def test_a_folder_that_is_no_output_is_refused(tmp_path):
    done = embedmill("verify", tmp_path)
    assert done.returncode == 2
    assert "has no _run.json" in done.stderr
    with pytest.raises(OutputError):
        open_output(str(tmp_path), None)
