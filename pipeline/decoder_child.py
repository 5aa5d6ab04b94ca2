"""Preprocessing in a child process, for shards whose decoder hung or crashed its worker.

One child serves many images and is started again when it dies. It can be killed at the time limit,
which nothing inside a process can do to C code, and the kernel limits its memory.
"""

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import IO, Any, Self

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError, StageError
from pipeline.preprocess import prepare
from pipeline.records import PatchedImage, RawSample, RejectReason

_START_TIMEOUT_S = 120.0  # importing torch on a busy node takes tens of seconds
_GRACE_S = 5.0  # after which a child whose parent is gone ends itself
# A JPEG needs 3 bytes per pixel, other formats 7, a WebP 16 (docs/images.md); half as much again.
_BYTES_PER_PIXEL, _BASE_BYTES = 24, 512 << 20
_SERVE = "import sys; from pipeline.decoder_child import serve; serve(int(sys.argv[1]))"

Prepare = Callable[..., PatchedImage]


class DecoderChild:
    """`prepare` behind a process boundary: with one more way to fail, by SampleError.

    `function` must be importable by name; tests plant their own. Started at the first image.
    Not for several threads at once.
    """

    def __init__(
        self,
        config: PreprocessConfig,
        *,
        geometry: Geometry,
        kernel: str,
        function: Prepare = prepare,
    ) -> None:
        self._config = config
        self._task = pickle.dumps((function, config, geometry, kernel))
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def prepare(self, sample: RawSample) -> PatchedImage:
        """As `pipeline.preprocess.prepare`.

        Raises SampleError also for decode_timeout and decoder_crashed, StageError where no child
        can be started.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between two images: not the fault of this one
        pipe = self._pipe or self._start()
        limit = self._config.decode_timeout_s
        try:
            pipe.send(sample)
            if not pipe.poll(limit):
                self.close()
                raise SampleError(RejectReason.DECODE_TIMEOUT, f"still decoding after {limit:g} s")
            result = pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise SampleError(RejectReason.DECODER_CRASHED, self._epitaph()) from error
        if isinstance(result, str):
            raise RuntimeError(f"prepare failed in the decoder child:\n{result}")
        if isinstance(result, SampleError):
            raise result
        patched: PatchedImage = result
        return patched

    def close(self) -> None:
        """Kills the child; the next image starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        with theirs, tempfile.TemporaryFile() as stderr:
            self._pipe = ours
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
            theirs.close()
            self._await_start(ours, stderr)
        return ours

    def _await_start(self, pipe: Connection, stderr: IO[bytes]) -> None:
        try:
            pipe.send_bytes(self._task)
            started = pipe.poll(_START_TIMEOUT_S) and pipe.recv()
        except (EOFError, ConnectionError):
            started = False
        if started is not True:
            self.close()
            stderr.seek(0)
            said = stderr.read()[-2000:].decode(errors="replace").strip()
            raise StageError(f"the decoder child did not start: {said or 'it said nothing'}")

    def _epitaph(self) -> str:
        """How the child ended, and its removal."""
        code = 0
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_GRACE_S)
        self.close()
        if code < 0:
            return f"the decoder ended its process with {signal.Signals(-code).name}"
        return f"the decoder ended its process with exit code {code}"


def serve(fileno: int) -> None:
    """The child: answers each sample with a PatchedImage, a SampleError or a traceback."""
    with Connection(fileno) as pipe:
        function, config, geometry, kernel = pickle.loads(pipe.recv_bytes())
        _limit_memory(_BASE_BYTES + _BYTES_PER_PIXEL * config.max_image_pixels)
        pipe.send(True)
        _close_stderr()
        with contextlib.suppress(EOFError):  # the parent is gone or done
            while True:
                sample = pipe.recv()
                # The default action ends the process even where C code holds the interpreter.
                signal.setitimer(signal.ITIMER_REAL, config.decode_timeout_s + _GRACE_S)
                pipe.send(_answer(function, sample, config, geometry, kernel))
                signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(function: Prepare, sample: RawSample, *task: Any) -> PatchedImage | SampleError | str:
    config, geometry, kernel = task
    try:
        return function(sample, config, geometry=geometry, kernel=kernel)
    except SampleError as error:
        return error
    except MemoryError:
        return SampleError(RejectReason.DECODER_CRASHED, "the decoder needs too much memory")
    except Exception:  # noqa: BLE001 - a bug of ours, raised again by the parent
        return traceback.format_exc()


def _limit_memory(extra: int) -> None:
    """Lets the process grow by `extra` bytes, and write no core file when it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere there is no telling how much is mapped now
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + extra, mapped + extra))


def _close_stderr() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
