"""A stage that slows down in the middle of a run: the pool of Preprocessors follows."""

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY, plant, write_shard
from tests.integration.ray_head import ray_head

# For every worker of the run: files in the folder PLANTED slow a stage. A photo takes some 10 ms to
# prepare and a pack some 40 ms to encode, so that both become about ten times as slow.
PLANTED = """
import os, pathlib, time
import encoder.infer as infer
import pipeline.preprocess as preprocess

folder = pathlib.Path(os.environ["PLANTED"])
submit, decode = infer.Encoder.submit, preprocess.decode

def slow_submit(*arguments, **options):
    if (folder / "slow pass").exists():
        time.sleep(0.4)
    return submit(*arguments, **options)

def slow_decode(*arguments, **options):
    if (folder / "slow decode").exists():
        time.sleep(0.1)
    return decode(*arguments, **options)

infer.Encoder.submit, preprocess.decode = slow_submit, slow_decode
"""
DECISION = re.compile(r"(\d) to (\d) Preprocessors: Encoders compute (\d+)%, streams wait (\d+)%")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("cpus", "shrinks"),
    [(4, [(3, 2), (2, 1)]), (3, [(2, 1)])],
    ids=["a place for each", "no place for the third"],
)
def test_the_pool_grows_while_decoding_is_slow_and_shrinks_while_encoding_is(
    photos, write_config, tmp_path, cpus, shrinks
):
    names = list(photos)
    members = {f"{i}-{names[i % len(names)]}": photos[names[i % len(names)]] for i in range(60)}
    for number in range(60):
        write_shard(tmp_path / "shards" / f"{number:02d}.tar", members)
    plant(tmp_path / "site", PLANTED)
    planted = tmp_path / "planted"
    planted.mkdir()
    workers = {
        "encoders": {"num_gpus": 0, "device": "cpu"},
        "preprocessors": {"min": 1, "max": 3},
    }
    (planted / "slow decode").touch()
    log = tmp_path / "driver.log"
    paths = {"PYTHONPATH": f"{tmp_path}/site:{REPOSITORY}", "PLANTED": str(planted)}

    def wait_for(decision):
        while decision not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)

    with (
        tempfile.TemporaryDirectory(prefix="em") as short,
        ray_head(Path(short), num_cpus=cpus, **paths) as head,
        log.open("w") as stream,
    ):
        config = write_config(
            workers=workers, packing={"token_budget": 1024}, ray={"address": head.address}
        )
        command = [sys.executable, "-m", "pipeline", "run", str(config)]
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=stream, env=head.env | paths)
        try:
            wait_for("2 to 3 Preprocessors")
            (planted / "slow pass").touch()
            (planted / "slow decode").unlink()
            wait_for("2 to 1 Preprocessors")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
            process.wait()
    said = log.read_text()
    print(said)
    found = [tuple(map(int, match.groups())) for match in DECISION.finditer(said)]
    assert [sizes[:2] for sizes in found] == [(1, 2), (2, 3), *shrinks]
    assert all(compute < 80 for _, _, compute, _ in found[:2])
    assert all(wait > 50 for _, _, _, wait in found[2:])
