"""How many tokens one forward pass may hold."""

import torch

from encoder.config import EncoderConfig

__all__ = ["forward_budget", "forward_bytes"]

# A larger pass than this fills no device better, and its activations leave every cache: base in
# bfloat16 has 100 MB in each tensor of width D at 65,536 tokens. Not measured on a GPU.
_MOST_TOKENS = 65_536
_CPU_TOKENS = 4_096  # as fast as 2,048; 1,024 and 8,192 are slower (docs/benchmarks.md)
_SHARE = 0.5  # of free device memory; the rest is for packs in flight and fragments


def forward_bytes(config: EncoderConfig, dtype: torch.dtype) -> int:
    """Bytes that one token needs at the peak of a forward pass.

    Beside the hidden state and its norm, the widest of what a block makes: the inner layer of the
    MLP before and after its activation, or query, key, value, the attention's output and its
    projection; the pixels and the position come on top.
    """
    width, inner = config.hidden_size, config.intermediate_size
    block = 2 * width + max(2 * inner, 5 * width)
    return (block + width) * dtype.itemsize + config.patch_values * (1 + dtype.itemsize)


def forward_budget(config: EncoderConfig, *, device: torch.device, dtype: torch.dtype) -> int:
    """Tokens in one forward pass: what half the free memory of a CUDA device holds, at most 65,536.

    On a CPU 4,096.
    """
    if device.type != "cuda":
        return _CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    fitting = int(_SHARE * free / forward_bytes(config, dtype))
    return max(1, min(_MOST_TOKENS, fitting))
