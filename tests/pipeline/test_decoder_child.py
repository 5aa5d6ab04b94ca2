import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from planted_decoders import planted

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.decoder_child import DecoderChild
from pipeline.errors import SampleError, StageError
from pipeline.preprocess import prepare
from pipeline.records import RawSample, RejectReason, SampleId

PHOTO = (
    Path(__file__).parents[2] / "pipeline" / "demo_photos" / "sand-64px-16bit.png"
).read_bytes()
CONFIG = PreprocessConfig(decode_timeout_s=1.0, max_image_pixels=1_000_000)
GEOMETRY = Geometry(patch_size=16, max_num_patches=16)


def sample(member="photo.png", image=PHOTO):
    return RawSample(
        id=SampleId(shard="file:///s.tar", key="k"), index=3, member=member, image=image
    )


@pytest.fixture(scope="module")
def child():
    with DecoderChild(CONFIG, geometry=GEOMETRY, kernel="pillow", function=planted) as child:
        yield child


def pid_of(child):
    return child.prepare(sample()).metadata["pid"]


def test_result_is_that_of_prepare():
    with DecoderChild(CONFIG, geometry=GEOMETRY, kernel="pillow") as child:
        found = child.prepare(sample())
    expected = prepare(sample(), CONFIG, geometry=GEOMETRY, kernel="pillow")
    np.testing.assert_array_equal(found.pixel_values, expected.pixel_values)
    assert (found.id, found.index, found.grid) == (expected.id, expected.index, expected.grid)


def test_one_child_serves_many_images(child):
    pids = {pid_of(child) for _ in range(5)}
    assert len(pids) == 1
    assert pids != {os.getpid()}


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ("segfault", "SIGSEGV"),
        pytest.param("abort", "SIGABRT", marks=pytest.mark.slow),
        pytest.param("exit", "exit code 3", marks=pytest.mark.slow),
    ],
)
def test_crash_rejects_the_image_and_the_next_one_is_prepared(child, member, says):
    with pytest.raises(SampleError, match=says) as caught:
        child.prepare(sample(member))
    assert caught.value.reason is RejectReason.DECODER_CRASHED
    assert pid_of(child) > 0


def test_hanging_decoder_is_ended_at_its_time_limit(child):
    before = pid_of(child)
    start = time.monotonic()
    with pytest.raises(SampleError, match="after 1 s") as caught:
        child.prepare(sample("hang"))
    assert caught.value.reason is RejectReason.DECODE_TIMEOUT
    assert 0.9 < time.monotonic() - start < 5
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert pid_of(child) != before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is mapped")
def test_memory_is_limited(child):
    with pytest.raises(SampleError, match="memory") as caught:
        child.prepare(sample("memory"))
    assert caught.value.reason is RejectReason.DECODER_CRASHED


def test_rejections_and_bugs_come_back_as_they_are(child):
    before = pid_of(child)
    with pytest.raises(SampleError, match="LFS") as caught:
        child.prepare(sample(image=b"version https://git-lfs.github.com/spec/v1\n"))
    assert caught.value.reason is RejectReason.UNKNOWN_FORMAT
    with pytest.raises(RuntimeError, match=r"planted_decoders.py(.|\n)*KeyError: 'ours'"):
        child.prepare(sample("bug"))
    assert pid_of(child) == before


def test_decoder_noise_is_not_heard(child, capfd):
    assert child.prepare(sample("noise")).grid == (4, 4)
    assert capfd.readouterr() == ("", "")


def test_child_that_died_between_images_is_replaced(child):
    os.kill(pid_of(child), signal.SIGKILL)
    deadline = time.monotonic() + 5
    while child._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pid_of(child) > 0


def test_child_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr("pipeline.decoder_child._SERVE", "raise SystemExit('no such wheel')")
    with (
        DecoderChild(CONFIG, geometry=GEOMETRY, kernel="pillow") as child,
        pytest.raises(StageError, match="no such wheel"),
    ):
        child.prepare(sample())


@pytest.mark.slow
def test_hanging_child_ends_itself_when_its_parent_was_killed():
    code = (
        "from test_decoder_child import *\n"
        "child = DecoderChild(CONFIG, geometry=GEOMETRY, kernel='pillow', function=planted)\n"
        "print(pid_of(child), flush=True)\n"
        "child.prepare(sample('hang'))\n"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    os.kill(pid, 0)  # still there: it hangs
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the orphan still runs")
