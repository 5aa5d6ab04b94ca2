"""Packs of several leases in shared forward passes, each as full as what waits allows.

A pass takes images of the packs that wait, in the order in which these came, up to the token
budget; a pack that does not fit whole is continued in the next pass. What is there is never held
back for what may come: an idle device gets it at once, however little it is. While a pass runs,
less than a full pass waits for its end, and a full one is made ready behind it.

Runs on one event loop, which owns all state; passes run in threads.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from encoder.batch import PackedBatch
from pipeline.errors import ShardError
from pipeline.records import EmbeddingBlock, SampleId

Vectors = NDArray[np.floating]  # [N, D], or [T, D] where the output is tokens

_AT_ONCE = 2  # passes: one that computes, one that is copied up meanwhile
# So much of the budget is a full pass. Packs come 98 % full and more; to let one wait for the rest
# would leave the device idle between two passes.
_FULL_SHARE = 0.95


class Results(Protocol):
    """As `encoder.pending.Pending`."""

    def results(self) -> list[Vectors]: ...


Submit = Callable[[Sequence[PackedBatch]], Results]


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingPack:
    """A pack on its way through one or several passes."""

    batch: PackedBatch
    done: "asyncio.Future[EmbeddingBlock]"
    taken: int = 0  # images that are in a pass
    vectors: dict[int, Vectors] = field(default_factory=dict)  # by the first image of a part
    images_done: int = 0
    passes: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_left(self) -> int:
        return int(self.batch.num_tokens - self.batch.cu_seqlens[self.taken])

    def take(self, room: int) -> "Part | None":
        """As many of its next images as fit into `room` tokens; None where the next does not."""
        first, ends = self.taken, self.batch.cu_seqlens
        last = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        if last == first:
            return None
        self.taken = last
        return Part(pack=self, first=first, batch=self.batch.part(first, last))

    def add(self, part: "Part", vectors: Vectors, share: float, pass_s: float) -> None:
        """None; takes the vectors of one of its parts, and is done with the last of them.

        `share` is its part of the pass by tokens, `pass_s` the seconds that the whole pass took.
        """
        if self.done.done():
            return  # another part failed, or nobody waits any more
        self.vectors[part.first] = vectors
        self.images_done += part.batch.num_images
        self.passes += share
        self.seconds += share * pass_s
        if self.images_done == self.batch.num_images:
            parts = [self.vectors[first] for first in sorted(self.vectors)]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            ids: tuple[Any, ...] = self.batch.ids
            self.done.set_result(
                EmbeddingBlock(ids=ids, vectors=whole, seconds=self.seconds, passes=self.passes)
            )

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring images of a pack that share a pass."""

    pack: WaitingPack
    first: int
    batch: PackedBatch


def take_pass(waiting: Iterable[WaitingPack], token_budget: int) -> list[Part]:
    """The parts of one pass, of at most `token_budget` tokens; earlier packs come first."""
    parts, room = [], token_budget
    for pack in waiting:
        part = pack.take(room)
        if part is not None:
            parts.append(part)
            room -= part.batch.num_tokens
    return parts


class SharedPasses:
    """The passes of one encoder; `submit` is that of `encoder.infer.Encoder`.

    `token_budget` must hold the largest image.
    """

    def __init__(self, submit: Submit, *, token_budget: int) -> None:
        self._submit, self._token_budget = submit, token_budget
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._collect = ThreadPoolExecutor(1, thread_name_prefix="collect")
        self._waiting: list[WaitingPack] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._busy_s = 0.0
        self._since: float | None = None  # when the oldest running pass became the oldest

    @property
    def busy_s(self) -> float:
        """Seconds that passes took which have ended."""
        return self._busy_s

    @property
    def running_for_s(self) -> float:
        """Seconds that the oldest pass has been alone in front; 0 for none."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    async def encode(self, batch: PackedBatch) -> EmbeddingBlock:
        """What the encoder makes of a pack. Cancelled, the pack is in no further pass.

        Where a pass fails on the device, memory that runs out included, its images are done again
        one by one, and only packs with an image that fails alone too are lost: raises ShardError
        that names it. A device that is broken fails all packs of a pass: torch.AcceleratorError.
        Any other error is one of the code and goes to all of them too.
        """
        batch.check()  # its parts can be trusted then: no pack fails another's lease
        pack = WaitingPack(batch=batch, done=asyncio.get_running_loop().create_future())
        self._waiting.append(pack)
        self._start()
        return await pack.done

    def _start(self) -> None:
        # Without packs of which a part failed, or that nobody waits for any more.
        self._waiting = [pack for pack in self._waiting if not pack.done.done()]
        while self._waiting and self._may_start():
            parts = take_pass(self._waiting, self._token_budget)
            self._waiting = [pack for pack in self._waiting if pack.tokens_left]
            task = asyncio.get_running_loop().create_task(self._run(parts))
            self._running.add(task)
            if self._since is None:
                self._since = time.monotonic()
            task.add_done_callback(partial(self._finish, parts))

    def _may_start(self) -> bool:
        if not self._running:
            return True
        waiting = sum(pack.tokens_left for pack in self._waiting)
        return len(self._running) < _AT_ONCE and waiting >= _FULL_SHARE * self._token_budget

    async def _run(self, parts: Sequence[Part]) -> list[Vectors | ShardError]:
        try:
            found = await self._encode([part.batch for part in parts])
            return list(found)
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            if sum(part.batch.num_images for part in parts) == 1:
                return [_name(parts[0].batch.ids[0], error)]
        return [await self._one_by_one(part.batch) for part in parts]

    async def _one_by_one(self, batch: PackedBatch) -> Vectors | ShardError:
        vectors = []
        for place in range(batch.num_images):
            try:
                vectors += await self._encode([batch.part(place, place + 1)])
            except torch.AcceleratorError:
                raise
            except RuntimeError as error:
                return _name(batch.ids[place], error)
        return np.concatenate(vectors)

    async def _encode(self, batches: Sequence[PackedBatch]) -> list[Vectors]:
        loop = asyncio.get_running_loop()
        pending = await loop.run_in_executor(self._compute, self._submit, batches)
        return await loop.run_in_executor(self._collect, pending.results)

    def _finish(
        self, parts: Sequence[Part], task: "asyncio.Task[list[Vectors | ShardError]]"
    ) -> None:
        self._running.discard(task)
        seconds = self.running_for_s
        self._busy_s += seconds
        self._since = time.monotonic() if self._running else None
        if task.cancelled():
            return  # the event loop ends
        error = task.exception()
        found = [error] * len(parts) if error is not None else task.result()
        tokens = sum(part.batch.num_tokens for part in parts)
        for part, vectors in zip(parts, found, strict=True):
            if isinstance(vectors, BaseException):
                part.pack.fail(vectors)
            else:
                part.pack.add(part, vectors, part.batch.num_tokens / tokens, seconds)
        self._start()


def _name(image: Any, error: RuntimeError) -> ShardError:
    shard = image.shard if isinstance(image, SampleId) else ""
    key = image.key if isinstance(image, SampleId) else image
    cause = " ".join(str(error).split())
    return ShardError(
        f"every image must be encoded, {key!r} was not, alone in a pass: "
        f"{type(error).__name__}: {cause}",
        shard,
    )
