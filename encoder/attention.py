"""Attention inside the images of a pack: one function, with backends that are chosen by name.

`reference`  one image after the other, plain softmax in float32; any device, for checks.
`sdpa`       torch's scaled_dot_product_attention over runs of images of equal length; any device.
`varlen`     torch.nn.attention.varlen: one kernel over the whole pack; CUDA and bfloat16 only.

A backend that cannot run is refused when the encoder is loaded and never replaced by another.
No backend lets the values of one image touch another's, NaN included.

Letters: N images, T tokens, H heads, W head width, Q query rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from encoder.transfer import upload_integers

__all__ = ["Backend", "Run", "Segments", "attend", "choose_backend", "describe_segments"]

Backend = Literal["reference", "sdpa", "varlen"]
_BACKENDS: tuple[Backend, ...] = ("reference", "sdpa", "varlen")
_PROBE_LENGTHS = (130, 1, 7)  # more than one tile of the kernel, a single token, a part of a tile
_PROBE_TOLERANCE = 0.02  # of the largest value; bfloat16 keeps 8 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbours in the pack that have the same length."""

    first_image: int
    first_token: int
    num_images: int
    length: int  # tokens in each

    @property
    def images(self) -> slice:
        return slice(self.first_image, self.first_image + self.num_images)

    @property
    def tokens(self) -> slice:
        return slice(self.first_token, self.first_token + self.num_images * self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Where the images of a pack lie, described once for all layers."""

    backend: Backend
    lengths: tuple[int, ...]  # [N], tokens
    runs: tuple[Run, ...]
    cu_tokens: Tensor  # varlen: [N + 1] int32 on the device, first token of each image; else [0]
    cu_images: Tensor  # varlen: [N + 1] int32 on the device, 0 to N: a query for each; else [0]


def choose_backend(
    name: str, *, device: torch.device, dtype: torch.dtype, head_width: int
) -> Backend:
    """The backend that `name` stands for.

    `auto` is varlen where it can run, which is decided by device, dtype and head width alone, and
    else sdpa. Raises ValueError for a name that is not known, and for varlen where it cannot run.
    """
    if name not in ("auto", *_BACKENDS):
        allowed = ", ".join(("auto", *_BACKENDS))
        raise ValueError(f"attention must be one of {allowed}, found {name!r}. Use auto.")
    lacks = _varlen_lacks(device, dtype, head_width)
    if name == "varlen" and lacks:
        raise ValueError(f"attention varlen needs {lacks}. Use auto or sdpa.")
    chosen = ("sdpa" if lacks else "varlen") if name == "auto" else name
    return next(backend for backend in _BACKENDS if backend == chosen)


def probe_backend(
    backend: Backend, *, num_heads: int, head_width: int, device: torch.device
) -> None:
    """None where varlen gives what the reference gives on this device, for this shape.

    Raises RuntimeError where its kernel is missing or wrong. Other backends need no proof.
    """
    if backend != "varlen":
        return
    query, key, value = torch.randn(
        3, sum(_PROBE_LENGTHS), num_heads, head_width, device=device, dtype=torch.bfloat16
    )
    results = [
        attend(query, key, value, describe_segments(_PROBE_LENGTHS, backend=name, device=device))
        for name in ("varlen", "reference")
    ]
    found, expected = (result.float() for result in results)
    error = float((found - expected).abs().max() / expected.abs().max())
    if not error <= _PROBE_TOLERANCE:
        raise RuntimeError(
            f"attention varlen must agree with reference to {_PROBE_TOLERANCE:g} on {device} for "
            f"{num_heads} heads of {head_width}, found {error:.3g}. Use attention sdpa."
        )


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
    count = len(starts) if backend == "varlen" else 0
    return Segments(
        backend=backend,
        lengths=tuple(lengths),
        runs=tuple(runs),
        cu_tokens=upload_integers(starts[:count], device),
        cu_images=upload_integers(range(count), device),
    )


def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """[Q, H, W] values that each query row gathers from the tokens of its own image.

    `key`, `value` [T, H, W]. `query` [Q, H, W] has a row for each token (Q = T), or one for each
    image (Q = N). The scale is W ** -0.5.
    """
    if segments.backend == "varlen":
        return _attend_varlen(query, key, value, segments)
    if segments.backend == "sdpa":
        return _attend_sdpa(query, key, value, segments)
    return _attend_reference(query, key, value, segments)


def _attend_reference(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    lengths = list(segments.lengths)
    queries = torch.split(query, lengths if _per_token(query, key) else 1)
    outputs = []
    for q, k, v in zip(
        queries, torch.split(key, lengths), torch.split(value, lengths), strict=True
    ):
        scores = torch.einsum("qhw,khw->hqk", q, k) * q.shape[-1] ** -0.5
        weights = scores.float().softmax(dim=-1).to(v.dtype)
        outputs.append(torch.einsum("hqk,khw->qhw", weights, v))
    return torch.cat(outputs)


def _attend_sdpa(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    per_token = _per_token(query, key)
    outputs = []
    for run in segments.runs:
        output = F.scaled_dot_product_attention(
            _split(query[run.tokens if per_token else run.images], run.num_images),
            _split(key[run.tokens], run.num_images),
            _split(value[run.tokens], run.num_images),
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    # Loads torch's compiler and sympy too: 1.3 s and 71 MiB, which no process on a CPU is to pay.
    from torch.nn.attention.varlen import varlen_attn

    longest = max(segments.lengths)
    per_token = _per_token(query, key)
    # Seven positionals: the keywords that follow have changed from release to release. A query for
    # each image is an expanded view with stride 0, which no kernel promises to take.
    gathered = varlen_attn(
        query if per_token else query.contiguous(),
        key,
        value,
        segments.cu_tokens if per_token else segments.cu_images,
        segments.cu_tokens,
        longest if per_token else 1,
        longest,
    )
    return cast(Tensor, gathered)  # a pair only where auxiliary results are asked for


def _varlen_lacks(device: torch.device, dtype: torch.dtype, head_width: int) -> str:
    """What varlen needs and does not have, in words; empty where it can run."""
    if device.type != "cuda":
        return f"a CUDA device, found {device}"
    if dtype != torch.bfloat16:
        return f"dtype bfloat16, found {str(dtype).removeprefix('torch.')}"
    if head_width % 8 or head_width > 256:
        return f"a head width that is a multiple of 8 and at most 256, found {head_width}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"compute capability 8.0 or more, found {capability[0]}.{capability[1]}"
    return ""


def _per_token(query: Tensor, key: Tensor) -> bool:
    """Whether each token has a query; where T = N the two readings are one."""
    return query.shape[0] == key.shape[0]


def _split(rows: Tensor, num_images: int) -> Tensor:
    """[num_images, H, rows of each, W] view of [rows, H, W]."""
    return rows.reshape(num_images, -1, *rows.shape[1:]).transpose(1, 2)
