"""When images were done and what CPU time that took, seen from inside and outside the processes."""

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

FROM, TO = 0.2, 0.9  # the share of images done between which a pipeline is in its steady state
# What the command lines of processes hold; all others of Ray are "other".
KINDS = (
    *("Preprocessor", "Encoder", "Process", "Encode", "Pack", "spawn_main"),
    *("raylet", "gcs_server"),
)


class Events:
    """Appends a line for each batch that is done; one file for each process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / f"{os.getpid()}.txt", "a", buffering=1)  # noqa: SIM115

    def __reduce__(self) -> tuple[type["Events"], tuple[Path]]:
        return Events, (Path(self._file.name).parent,)

    def done(self, images: int) -> None:
        self._file.write(f"{time.monotonic()} {images}\n")


def read_events(folder: Path) -> np.ndarray:
    """[events, 2] time and images done up to it."""
    lines = [line.split() for path in folder.glob("*.txt") for line in path.open()]
    events = np.array(sorted((float(when), int(count)) for when, count in lines))
    events[:, 1] = events[:, 1].cumsum()
    return events


class CpuMeter:
    """CPU seconds of this process and all below it, sampled twice a second, ended ones included."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._seconds: dict[int, list[float]] = {}  # by process, one value for each sample
        self._kinds: dict[int, str] = {}
        self._sampling = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """CPU seconds by kind of process, between two times of the monotonic clock."""
        spent: Counter[str] = Counter()
        with self._sampling:
            for process, seconds in self._seconds.items():
                start, stop = np.interp((begin, end), self._times, seconds)
                spent[self._kinds[process]] += float(stop - start)
        return dict(sorted(spent.items()))

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            with self._sampling:
                self._sample()

    def _sample(self) -> None:
        self._times.append(time.monotonic())
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                with process.oneshot():
                    times, name = process.cpu_times(), " ".join(process.cmdline()[:4])
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            kind = "driver" if process == me else next((k for k in KINDS if k in name), "other")
            # Ray's workers change their names from task to task, and start under the raylet's.
            if kind not in ("other", "raylet") or process.pid not in self._kinds:
                self._kinds[process.pid] = kind
            seconds = self._seconds.setdefault(process.pid, [0.0] * (len(self._times) - 1))
            seconds.append(times.user + times.system)
        for seconds in self._seconds.values():
            seconds.extend(seconds[-1:] * (len(self._times) - len(seconds)))


def steady(folder: Path, meter: CpuMeter) -> dict[str, Any]:
    """Images/s, and CPU milliseconds an image by kind of process, without start and tail."""
    events = read_events(folder)
    total = events[-1, 1]
    first, last = (int(np.searchsorted(events[:, 1], share * total)) for share in (FROM, TO))
    if last <= first:
        raise RuntimeError(f"{total:.0f} images in {len(events)} steps are too few to see a rate")
    (begin, before), (end, after) = events[first], events[last]
    images = float(after - before)
    spent = {kind: 1000 * s / images for kind, s in meter.between(begin, end).items()}
    return {"images_per_s": images / (end - begin), "cpu_ms_per_image": spent}
