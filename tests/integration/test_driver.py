"""What the driver makes of failed leases, without a cluster: actors start in a run only."""

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

from pipeline import driver
from pipeline.actors import StreamLostError
from pipeline.driver import _LeaseLoop
from pipeline.errors import OutputTooLargeError, ShardError
from pipeline.manifest import list_committed
from pipeline.stage import RunPlan
from pipeline.work import OpenLease, Work
from pipeline.writer import Lease
from tests.pipeline.outputs import MODEL, Output, shard_id

URL = shard_id("a")


@pytest.fixture
def loop():
    output = Output("memory:///driver", inputs=["a"])
    plan = RunPlan(
        config=output.config,
        output=output.path,
        model=MODEL,
        fingerprint=output.fingerprint,
        kernel="torch",
    )
    committed = list_committed(output.storage, output.path)
    work = Work(plan=plan, total=1, pending=[URL], committed=committed)
    loop = _LeaseLoop(work, output.storage)
    loop._queue.clear()  # the lease is out
    return loop


@pytest.mark.parametrize(("kind", "attempts"), [(ShardError, 3), (OutputTooLargeError, 1)])
def test_a_shard_is_tried_again_unless_that_cannot_help(loop, kind, attempts):
    for left in reversed(range(attempts)):
        assert not loop.progress.failed
        loop._failed(Lease(url=URL), kind("broken", URL))
        assert list(loop._queue) == ([URL] if left else [])
        loop._queue.clear()
    assert loop.progress.failed == {URL: f"{URL}: broken"}
    assert len(loop.lost_attempts) == attempts


@pytest.mark.parametrize(
    "error",
    [ActorDiedError(), OutOfMemoryError("killed for its memory"), StreamLostError("it was lost")],
)
def test_a_lease_that_is_lost_with_its_actor_goes_back_to_the_queue(loop, monkeypatch, error):
    def get(reference):
        raise error

    monkeypatch.setattr(driver.ray, "get", get)
    loop.progress.open["reference"] = OpenLease(lease=Lease(url=URL))
    loop._finish("reference")
    assert list(loop._queue) == [URL]
    assert not loop._failures, "it is not the shard's fault"
