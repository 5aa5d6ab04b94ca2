"""The benchmarks run to their end at small size. Their figures are not looked at."""

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PHOTOS = REPOSITORY / "pipeline" / "demo_photos"
CORPORA = Path(os.environ.get("EMBEDMILL_CORPORA", REPOSITORY.parent / "shared" / "corpora"))


def run(script, *arguments) -> dict:
    command = [sys.executable, REPOSITORY / "benchmarks" / script, *map(str, arguments)]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_encoder_gpu_runs_to_its_end_without_a_gpu():
    sizes = ["--images", 6, "--pack-tokens", 1024, "--padded-images", 3, "--seconds", 0]
    result = run("encoder_gpu.py", "--models", "tiny", *sizes)
    assert result["card"]["matrix_tflops"] > 0
    figures = result["models"]["tiny"]
    assert figures["ours"].keys() == figures["theirs"].keys() == {"256", "1024", "mixed"}
    for workload, ours in figures["ours"].items():
        assert ours["images_per_s"] > 0
        assert ours["matrix_share"] > 0
        assert figures["theirs"][workload]["host_to_device_mb"] > 3.9 * ours["host_to_device_mb"]
    assert figures["correctness"]["float32_largest"] < 1e-5
    assert figures["correctness"]["bfloat16_ours"] > 0
    assert len(result["targets"]) == 4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_encoder_gpu_writes_what_it_has(tmp_path):
    sizes = ["--images", 3, "--pack-tokens", 1024, "--padded-images", 3, "--seconds", 0]
    out = tmp_path / "figures.json"
    result = run("encoder_gpu.py", "--models", "tiny", "--workloads", "mixed", "--out", out, *sizes)
    assert json.loads(out.read_text()) == result
    assert result["models"]["tiny"]["ours"].keys() == {"mixed"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_encoder_cpu():
    sizes = ["--images", 8, "--batch", 4, "--pair", 4, "--rounds", 1, "--threads", 1]
    result = run("encoder_cpu.py", PHOTOS, "--model", "tiny", *sizes)
    assert result["workloads"].keys() == {"256", "mixed"}
    for figures in result["workloads"].values():
        assert len(figures["ratio"]["rounds"]) == 2
        low, high = figures["ratio"]["interval_95"]
        assert 0 < low <= figures["ratio"]["median"] <= high
        assert figures["largest_difference"] < 1e-5
        assert figures["tokens"] < figures["padded_tokens"]
        assert all(0 < m["loaded"] <= m["peak"] for m in figures["memory_mib"].values())


def figures_of(folder, script, *arguments) -> dict:
    """What a benchmark writes to --json."""
    path = folder / "figures.json"
    command = [sys.executable, REPOSITORY / "benchmarks" / script, *arguments, "--json", path]
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_preprocess(tmp_path):
    """Where torchvision is missing, as in the default installation, two engines are left out."""
    figures = figures_of(tmp_path, "preprocess.py", PHOTOS, "--rounds", 1)
    rates = figures["classes"]["all"]["images_per_cpu_s"]
    assert len(rates) + len(figures["missing"]) == 6
    assert rates.keys() >= {"embedmill exact", "embedmill reduced", "Pillow decoding alone"}
    assert all(rate > 0 for rate in rates.values())
    assert all(value >= 0 for spent in figures["stages"].values() for value in spent.values())


def test_reduced_decode(tmp_path):
    sizes = "--model", "tiny", "--patches", 64
    figures = figures_of(tmp_path, "reduced_decode.py", PHOTOS, *sizes)
    assert 2 <= figures["changed"] < figures["photos"]
    assert 0.99 < figures["cosine"]["lowest"] < 1
    assert 0 < figures["levels"]["mean"] < 3


@pytest.mark.corpus
@pytest.mark.skipif(not CORPORA.is_dir(), reason=f"no corpora in {CORPORA}")
def test_packing(tmp_path):
    sizes = "--images", 3000, "--budgets", 16384
    workloads = figures_of(tmp_path, "packing.py", CORPORA, *sizes)["workloads"]
    assert workloads.keys() >= {"uniform 256", "mix 64-1024", "photos, 256 patches"}
    for figures in workloads.values():
        fill = figures["budgets"]["16384"]
        assert 0.98 <= fill["stream"] <= 1
        assert fill["shards_100"] < fill["shards_1000"] < fill["stream"]
        assert 0.95 <= fill["shards_100_shared"] <= 1
        assert 0.95 <= fill["shards_1000_shared"] <= 1
        assert 0 <= figures["padding"]["to_the_largest_of_32"] < 0.5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scale(tmp_path):
    figures = figures_of(tmp_path, "scale.py", "--shards", 100, "--actors", "empty")
    assert figures["driver_cpu_ms_per_shard"] > 0
    assert 0 < figures["most_open"] <= 16, "two leases for each of eight Preprocessors"
    first, *_, last = figures["samples"]
    assert (first["done"], first["queued"]) == (0, 100)
    assert (last["done"], last["queued"], last["open"], last["held"]) == (100, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_stage(tmp_path):
    engines = "embedmill", "embedmill, no encoder", "plain loops, no encoder"
    sizes = "--copies", 10, "--rounds", 1, "--engines", *engines
    figures = figures_of(tmp_path, "stage.py", PHOTOS, *sizes)
    assert figures["runs"].keys() == set(engines)
    for (run,) in figures["runs"].values():
        assert run["images"] == figures["images"]
        assert 0 < run["images_per_s"] < run["steady"]["images_per_s"]
        assert all(spent >= 0 for spent in run["steady"]["cpu_ms_per_image"].values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_transport(tmp_path):
    figures = figures_of(tmp_path, "transport.py", "--packs", 20, "--rounds", 1)
    pack = figures["64 images of 256 patches"]
    assert pack["pixels"] == 64 * 256 * 768
    assert 0 < pack["other"] < 0.01 * pack["pixels"]
    assert figures["one patch"]["ms"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_cold_start(tmp_path):
    (seconds,) = figures_of(tmp_path, "cold_start.py", "--rounds", 1)["rounds"]
    assert 0 < seconds["command line"] < seconds["Ray"] < seconds["first shard"] <= seconds["end"]


def test_the_meter_may_be_read_while_it_samples(monkeypatch):
    """It was read with more times than samples, one time in three on a busy machine."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    meter = importlib.import_module("stage_meter").CpuMeter()
    begin = time.monotonic()
    with meter:
        while (now := time.monotonic()) < begin + 1.7:
            spent = meter.between(begin, now)
    assert spent["driver"] > 0
