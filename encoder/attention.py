"""Attention inside the images of a pack: one function, with backends that are chosen by name.

`reference`  one softmax under a block mask; memory grows with the square of the pack, for checks.
`sdpa`       torch's scaled_dot_product_attention over runs of images of equal length; any device.
`varlen`     torch.nn.attention.varlen on CUDA; the name is taken, the backend is not built yet.

A backend that cannot run is refused when the encoder is loaded and never replaced by another.

Letters: N images, T tokens, H heads, W head width, Q query rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Backend", "Run", "Segments", "attend", "choose_backend", "describe_segments"]

Backend = Literal["reference", "sdpa"]
_BACKENDS: tuple[Backend, ...] = ("reference", "sdpa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbours in the pack that have the same length."""

    first_image: int
    first_token: int
    num_images: int
    length: int  # tokens in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Where the images of a pack lie, described once for all layers."""

    backend: Backend
    lengths: tuple[int, ...]  # [N], tokens
    runs: tuple[Run, ...]
    image_of_token: Tensor  # [T] int64, on the device of the tokens


def choose_backend(name: str) -> Backend:
    """The backend that `name` stands for; `auto` is sdpa.

    Raises ValueError for a name that is not known or not built yet.
    """
    if name == "auto":
        return "sdpa"
    for backend in _BACKENDS:
        if name == backend:
            return backend
    why = "which is not built yet" if name == "varlen" else "which is not known"
    allowed = ", ".join(("auto", *_BACKENDS))
    raise ValueError(f"attention must be one of {allowed}, found {name!r}, {why}. Use auto.")


def describe_segments(
    lengths: Sequence[int], *, backend: Backend, device: torch.device
) -> Segments:
    """The segments of a pack whose images have these lengths, in this order.

    Fewest runs, and the fastest `sdpa`, where images of equal length are neighbours.
    """
    starts = [0, *accumulate(lengths)]
    runs = []
    for length, group in groupby(range(len(lengths)), key=lambda i: lengths[i]):
        images = list(group)
        first = images[0]
        runs.append(
            Run(
                first_image=first,
                first_token=starts[first],
                num_images=len(images),
                length=length,
            )
        )
    image_of_token = torch.repeat_interleave(
        torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64)
    )
    return Segments(
        backend=backend,
        lengths=tuple(lengths),
        runs=tuple(runs),
        image_of_token=image_of_token.to(device),
    )


def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """[Q, H, W] values that each query row gathers from the tokens of its own image.

    `key`, `value` [T, H, W]. `query` [Q, H, W] has a row for each token (Q = T), or one for each
    image (Q = N). The scale is W ** -0.5.
    """
    if segments.backend == "reference":
        return _attend_reference(query, key, value, segments)
    return _attend_sdpa(query, key, value, segments)


def _attend_reference(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    image_of_key = segments.image_of_token
    per_token = query.shape[0] == key.shape[0]  # where Q = T = N the two are the same
    num_images = len(segments.lengths)
    image_of_query = (
        image_of_key if per_token else torch.arange(num_images, device=image_of_key.device)
    )
    scores = torch.einsum("qhw,khw->hqk", query, key) * query.shape[-1] ** -0.5
    foreign = image_of_query[:, None] != image_of_key
    weights = scores.float().masked_fill(foreign, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khw->qhw", weights.to(value.dtype), value)


def _attend_sdpa(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    per_token = query.shape[0] == key.shape[0]
    outputs = []
    for run in segments.runs:
        tokens = slice(run.first_token, run.first_token + run.num_images * run.length)
        images = slice(run.first_image, run.first_image + run.num_images)
        output = F.scaled_dot_product_attention(
            _split(query[tokens if per_token else images], run.num_images),
            _split(key[tokens], run.num_images),
            _split(value[tokens], run.num_images),
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _split(rows: Tensor, num_images: int) -> Tensor:
    """[num_images, H, rows of each, W] view of [rows, H, W]."""
    return rows.reshape(num_images, -1, *rows.shape[1:]).transpose(1, 2)
