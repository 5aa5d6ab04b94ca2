"""Linear layers; on x86 CPUs in float32 by oneDNN, with the weights laid out for it once.

torch gives such products to MKL, which keeps to AVX2 on AMD's CPUs: one Zen 5 core does 80 to 91
GFLOP/s there, 200 to 212 in oneDNN, and 174 to 185 with GELU in the same pass (docs/benchmarks.md).
bfloat16 products are oneDNN's without our help.
"""

import platform
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Linear", "in_blocks", "lay_out_weights"]

_SMALLEST_BLOCK = 64  # rows


class Linear(nn.Linear):
    """nn.Linear, with tanh-approximated GELU after it where `gelu`."""

    def __init__(self, inputs: int, outputs: int, *, gelu: bool = False) -> None:
        super().__init__(inputs, outputs)
        self.gelu = gelu

    @property
    def laid_out(self) -> bool:
        """Whether oneDNN multiplies."""
        return self.weight.is_mkldnn

    def forward(self, x: Tensor) -> Tensor:
        """[rows, outputs] from [rows, inputs]."""
        if self.laid_out:
            return in_blocks(self._onednn, x)
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y, approximate="tanh") if self.gelu else y

    def _onednn(self, x: Tensor) -> Tensor:
        name, algorithm = ("gelu", "tanh") if self.gelu else ("none", "")
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, name, [], algorithm
        )
        return y


def in_blocks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)` of rows that do not depend on each other, by blocks of few different sizes.

    oneDNN keeps code for each number of rows that it has seen, up to 1,024: 620 MiB after as many
    packs of a small model. By blocks that is 20 MiB, and no slower.
    """
    blocks = list(_blocks(x))
    y = function(blocks[0]) if len(blocks) == 1 else torch.cat([function(b) for b in blocks])
    return y[: len(x)]


def _blocks(x: Tensor) -> Iterator[Tensor]:
    """Yields the rows by powers of two, the large ones first; zeros fill the last block."""
    start = 0
    while start < len(x):
        rows = len(x) - start
        size = max(_SMALLEST_BLOCK, 1 << (rows.bit_length() - 1))
        block = x[start : start + size]
        yield block if rows >= size else F.pad(block, (0, 0, 0, size - rows))
        start += size


def lay_out_weights(model: nn.Module) -> None:
    """None; the weights of each Linear on a CPU are in oneDNN's layout, where it is to multiply."""
    if not _onednn_is_there():
        return
    for layer in model.modules():
        if isinstance(layer, Linear) and layer.weight.dtype == torch.float32:
            laid_out = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
            layer.weight = nn.Parameter(laid_out, requires_grad=False)


def _onednn_is_there() -> bool:
    """Whether this torch has the two operators, which torch.compile uses and nobody documents."""
    return (
        platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
