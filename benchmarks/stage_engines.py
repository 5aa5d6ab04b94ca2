"""embedmill's whole stage on a local Ray, with its encoder or none, and its plain loops."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stage_meter import Events

import pipeline.actors
import pipeline.workers
from encoder.batch import PackedBatch
from pipeline.cluster import connect
from pipeline.config import RunConfig
from pipeline.driver import run_leases
from pipeline.passes import Results, SharedPasses, Submit, Vectors
from pipeline.stage import RunPlan, run_plain
from pipeline.storage import Storage
from pipeline.work import prepare_work
from pipeline.writer import Lease


def configuration(folder: Path, output: Path, preprocessors: int) -> RunConfig:
    pools = {
        "encoders": {"min": 1, "max": 1, "num_gpus": 0, "num_cpus": 1, "device": "cpu"},
        "preprocessors": {"min": preprocessors, "max": preprocessors},
    }
    return RunConfig.model_validate(
        {
            "input": {"shards": f"{folder}/shards/*.tar"},
            "output": {"path": str(output / "rows")},
            "model": {"checkpoint": f"{folder}/checkpoint"},
            "workers": pools,
        }
    )


class NoEncoder:
    """Copies the pixels of its packs once, as a transfer to a GPU would, and answers with ones."""

    def __init__(self, width: int) -> None:
        self._width, self._pixels = width, np.empty(0, np.uint8)

    def submit(self, batches: Sequence[PackedBatch]) -> "Ones":
        for batch in batches:
            if self._pixels.size < batch.pixel_values.size:
                self._pixels = np.empty(batch.pixel_values.size, np.uint8)
            np.copyto(self._pixels[: batch.pixel_values.size], batch.pixel_values.reshape(-1))
        return Ones([(batch.num_images, self._width) for batch in batches])


@dataclass(frozen=True)
class Ones:
    shapes: list[tuple[int, int]]

    def results(self) -> list[Vectors]:
        return [np.ones(shape, np.float32) for shape in self.shapes]


@dataclass(frozen=True)
class Logged:
    """Results that leave a line in the events when they are there."""

    pending: Results
    events: Events

    def results(self) -> list[Vectors]:
        vectors = self.pending.results()
        self.events.done(sum(map(len, vectors)))
        return vectors


def logged(submit: Submit, folder: Path) -> Submit:
    events = Events(folder)
    return lambda batches: Logged(submit(batches), events)


def embedmill(folder: Path, output: Path, preprocessors: int, *, encoder: bool) -> dict[str, Any]:
    class Encoder(pipeline.actors.Encoder):
        async def start(self) -> pipeline.actors.Place:
            place = await super().start()
            inner = self._encoder if encoder else NoEncoder(self._plan.model.readout.width)
            budget = self._plan.config.packing.token_budget
            self._passes = SharedPasses(
                logged(inner.submit, output / "events"), token_budget=budget
            )
            return place

    pipeline.workers.Encoder = Encoder  # type: ignore[misc]
    config = configuration(folder, output, preprocessors)
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    with connect(config):
        start = time.perf_counter()
        progress = run_leases(work, storage, [])
        seconds = time.perf_counter() - start
    if progress.failed:
        raise RuntimeError(f"shards failed: {progress.failed}")
    return {"seconds": seconds}


def plain_loops(folder: Path, output: Path, loops: int) -> dict[str, Any]:
    """The same functions without Ray, in so many processes that share out the shards."""
    config = configuration(folder, output, loops)
    work = prepare_work(config, Storage(config.storage))
    context = multiprocessing.get_context("spawn")
    parts = [work.pending[number::loops] for number in range(loops)]
    processes = [
        context.Process(target=plain_loop, args=(work.plan, part, output / "events"))
        for part in parts
    ]
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a plain loop ended with {process.exitcode}")
    return {"seconds": time.perf_counter() - start}


def plain_loop(plan: RunPlan, urls: list[str], events: Path) -> None:
    torch.set_num_threads(1)
    submit = logged(NoEncoder(plan.model.readout.width).submit, events)
    leases = (Lease(url=url) for url in urls)
    encode = lambda batch: submit([batch]).results()[0]  # noqa: E731
    for _ in run_plain(leases, plan, Storage(plan.config.storage), encode):
        pass
