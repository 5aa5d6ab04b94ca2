"""`embedmill plan`: what it foretells is what the run then does, and it writes nothing."""

import pytest
from typer.testing import CliRunner

from encoder.infer import load_encoder
from pipeline.cli import app
from pipeline.config_file import load_config
from pipeline.forecast import forecast, sample_images
from pipeline.manifest import open_run
from pipeline.stage import run_plain
from pipeline.storage import Storage
from pipeline.work import prepare_work
from pipeline.writer import Lease
from tests.integration.conftest import write_shard


def plan(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


@pytest.fixture
def shards(tmp_path, photos):
    """12 shards of four photos and one file that is none."""
    names = list(photos)
    for number in range(12):
        members = {names[(number + step) % len(names)]: b"" for step in range(0, 20, 5)}
        members = {name: photos[name] for name in members} | {"bad.jpg": b"no image"}
        write_shard(tmp_path / "shards" / f"{number:05d}.tar", members)


@pytest.fixture
def work(shards, write_config):
    config = load_config(write_config())
    return prepare_work(config, Storage(config.storage))


def run(work, checkpoint):
    """The reports of the run."""
    plan, storage = work.plan, Storage(work.plan.config.storage)
    open_run(storage, plan.output, plan.config, plan.model, plan.fingerprint)
    leases = [Lease(url=url) for url in work.pending]
    encoder = load_encoder(checkpoint, device="cpu")
    return [result.report for result in run_plain(leases, plan, storage, encoder)]


def foretold(work, count):
    storage = Storage(work.plan.config.storage)
    sampled = sample_images(work.pending, work.plan, storage, count)
    return forecast(work.pending, sampled, work.plan, storage)


def test_what_is_sampled_whole_is_foretold_exactly(work, checkpoint, monkeypatch):
    monkeypatch.setattr("pipeline.forecast._MOST_SHARDS", 12)
    found = foretold(work, 60)
    reports = run(work, checkpoint)
    assert found.exact
    assert found.images == sum(report.read for report in reports) == 60
    assert found.good == sum(report.embedded for report in reports) == 48
    assert found.tokens == sum(report.tokens for report in reports)
    assert found.input_bytes == sum(report.bytes_read for report in reports)
    assert found.output_bytes == 48 * 192 * 4


def test_the_rest_is_foretold_from_a_part(work):
    whole, part = foretold(work, 10**6), foretold(work, 24)
    assert not part.exact
    assert part.input_bytes == whole.input_bytes
    assert part.images == pytest.approx(60, rel=0.5)
    assert part.tokens / part.good == pytest.approx(whole.tokens / whole.good, rel=0.05)


def test_it_tells_all_and_writes_nothing(shards, write_config, tmp_path):
    config = write_config()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = plan(config, "--sample", 40)
    assert done.exit_code == 0, done.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    for text in (
        "12: 0 done, 12 to do",
        "30 images of 6 shards: 24 fit, 6 rejected",
        "rejected: unknown_format 6",
        "formats: ",
        "megapixels: ",
        "#### ",
        "full forward passes of 4,096 tokens",
        "one Preprocessor: ",
        "one Encoder: ",
        "measured here on cpu",
        "this machine has ",
    ):
        assert text in done.output


def test_sample_0_only_counts(shards, write_config):
    done = plan(write_config(), "--sample", 0)
    assert done.exit_code == 0
    assert "12 to do" in done.output
    assert "sampled" not in done.output


def test_nothing_to_do_is_not_sampled(work, checkpoint, write_config):
    run(work, checkpoint)
    done = plan(write_config())
    assert "12: 12 done, 0 to do" in done.output
    assert "sampled" not in done.output


def test_an_encoder_for_a_gpu_is_not_measured_without_one(shards, write_config):
    done = plan(write_config(workers={"encoders": {"device": "cuda", "num_gpus": 1}}))
    assert done.exit_code == 0, done.output
    assert "one Encoder: not measured, this machine has no GPU" in done.output
    assert "Encoders will wait" not in done.output


def test_warnings(write_config, tmp_path, photos):
    photo = photos["anemones.jpg"]
    write_shard(tmp_path / "shards" / "a.tar", {"x.1.jpg": photo, "x.2.jpg": photo, "y.jpg": photo})
    (tmp_path / "shards" / "b.tar").write_bytes(b"not a tar at all" * 100)
    workers = {
        "encoders": {"num_gpus": 0, "device": "cpu", "max": 4000},
        "preprocessors": {"max": 1},
    }
    config = write_config(workers=workers, storage={"s3": {"conditional_put": "disabled"}})
    done = plan(config)
    assert done.exit_code == 0, done.output
    warned = [line for line in done.output.splitlines() if line.startswith("WARNING")]
    assert len(warned) == 4
    for text, line in zip(
        (
            "keys merge: 1 of 2 images",
            "b.tar cannot be read",
            "Encoders will wait",
            "Lower workers.",
        ),
        warned,
        strict=True,
    ):
        assert text in line
