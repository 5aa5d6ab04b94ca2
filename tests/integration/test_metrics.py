"""The metrics of a real run, as Prometheus gets them from Ray's endpoint."""

import re
import time
import urllib.request
from pathlib import Path

import pytest
import ray

from pipeline.config_file import load_config
from pipeline.driver import run_leases
from pipeline.manifest import open_run
from pipeline.metrics import COUNTERS, GAUGES, RunMetrics
from pipeline.storage import Storage
from pipeline.work import prepare_work
from tests.integration.conftest import write_shard

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SERIES = re.compile(r"^(ray_embedmill_\w+)\{(.*)\} (\S+)$", flags=re.MULTILINE)


@pytest.fixture
def endpoint(tmp_path_factory):
    """The URL of the metrics of a Ray of our own."""
    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=300 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 500},
    )
    try:
        node = ray.nodes()[0]
        yield f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    finally:
        ray.shutdown()


def scrape(endpoint):
    """Values by name and by labels of our own."""
    with urllib.request.urlopen(endpoint, timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in SERIES.findall(text):
        own = dict(re.findall(r'(output|outcome|reason|phase|pool)="([^"]*)"', labels))
        found[name, *sorted(own.items())] = float(value)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_counted(write_config, photos, tmp_path, endpoint):
    for shard in ("a", "b"):
        members = dict(list(photos.items())[:3]) | {"bad.jpg": b"no image"}
        write_shard(tmp_path / "shards" / f"{shard}.tar", members)
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    plan = work.plan
    open_run(storage, plan.output, config, plan.model, plan.fingerprint)
    metrics = RunMetrics(plan.output)
    progress = run_leases(work, storage, [metrics.update])
    output = ("output", plan.output)

    deadline = time.monotonic() + 60
    found = scrape(endpoint)
    while ("ray_embedmill_shards_total", ("outcome", "published"), output) not in found:
        assert time.monotonic() < deadline, sorted(found)
        time.sleep(0.5)
        found = scrape(endpoint)

    def value(name, *label):
        return found[(f"ray_embedmill_{name}", *sorted([label, output] if label else [output]))]

    assert value("shards_total", "outcome", "published") == progress.done == 2
    assert value("images_total", "outcome", "embedded") == progress.embedded > 0
    assert value("images_total", "outcome", "rejected") == 2
    assert value("rejects_total", "reason", "unknown_format") == 2
    assert value("tokens_total") == progress.tokens > 0
    assert value("forward_passes_total") == pytest.approx(progress.passes)
    sizes = sum(path.stat().st_size for path in (tmp_path / "shards").iterdir())
    assert value("read_bytes_total") == sizes
    assert value("phase_seconds_total", "phase", "encode") > 0
    assert value("shards_left") == 0
    assert {name for name, *_ in found} <= {f"ray_{name}" for name, *_ in (*COUNTERS, *GAUGES)}


def test_the_page_has_each_metric_and_its_label():
    rows = re.findall(
        r"^\| `ray_(\w+)` \| (\w+) \| (?:`(\w+)`)?", PAGE.read_text(), flags=re.MULTILINE
    )
    expected = [(name, "counter", label or "") for name, label, _ in COUNTERS]
    expected += [(name, "gauge", label or "") for name, label, _ in GAUGES]
    assert sorted(rows) == sorted(expected)
