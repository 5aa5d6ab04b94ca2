"""The SigLIP vision tower on packed images, as in transformers' Siglip2VisionModel.

Letters: N images in a pack, T tokens, P values in a patch, D width, H heads, W head width.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoder.attention import Segments, attend
from encoder.config import EncoderConfig
from encoder.linear import Linear, in_blocks
from encoder.output import Readout

__all__ = ["BYTE_CENTRE", "VisionTower"]

# Bytes are centred before the first matrix product. -128..127 are exact in bfloat16, and images
# average near 0; with 0..255 the products cancel (bfloat16, gray patches: error 2.2 % and 0.25 %).
# The patch weights hold the rest of the normalisation, see encoder.weights.
BYTE_CENTRE = 128

_DTYPES = {"float32": torch.float32, "float16": torch.float16}


class VisionTower(nn.Module):
    """Patches of a pack -> what the readout asks for; has only the parts that this needs."""

    def __init__(self, config: EncoderConfig, readout: Readout) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.readout = readout
        self.patch = Linear(config.patch_values, width)
        self.positions = nn.Parameter(torch.empty(config.grid_side, config.grid_side, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(readout.blocks))
        self.norm = nn.LayerNorm(width, eps=eps) if readout.norm_after is not None else None
        self.head = PoolingHead(config) if readout.vectors == "pooled" else None

    def forward(self, pixel_values: Tensor, positions: Tensor, segments: Segments) -> Tensor:
        """[N, width] vectors or [T, width] tokens, in the readout's dtype.

        `pixel_values` [T, P] uint8; `positions` [T, D], see encoder.position.
        """
        readout = self.readout
        states = {
            number: state
            for number, state in enumerate(self._states(pixel_values, positions, segments))
            if number in readout.states
        }
        wanted = [states[number] for number in readout.states]
        tokens = wanted[0] if len(wanted) == 1 else torch.cat(wanted, dim=1)
        if self.head is not None:
            vectors = self.head(tokens, segments).float()
        elif readout.vectors == "mean":
            vectors = _mean(tokens, segments)
        else:
            vectors = tokens
        if readout.normalize:
            vectors = F.normalize(vectors, dim=-1)
        result: Tensor = vectors.to(_DTYPES[readout.dtype])
        return result

    def _states(
        self, pixel_values: Tensor, positions: Tensor, segments: Segments
    ) -> Iterator[Tensor]:
        """Yields the hidden states [T, D] before the first block and after each."""
        centred = pixel_values.to(self.patch.weight.dtype).sub_(BYTE_CENTRE)
        x = self.patch(centred) + positions
        yield x
        for number, block in enumerate(self.blocks, 1):
            x = block(x, segments)
            yield self.norm(x) if self.norm is not None and number == self.readout.norm_after else x


def _mean(tokens: Tensor, segments: Segments) -> Tensor:
    """[N, width] float32 means over the tokens of each image."""
    means = [
        tokens[run.tokens].float().view(run.num_images, run.length, -1).mean(dim=1)
        for run in segments.runs
    ]
    return torch.cat(means)


class Block(nn.Module):
    """Pre-norm transformer block; query, key and value come from one product."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.num_heads = config.num_attention_heads
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """[T, D] from [T, D]."""
        qkv = self.qkv(self.norm1(x)).view(len(x), 3, self.num_heads, -1)
        query, key, value = qkv.unbind(dim=1)  # [T, H, W]
        x = x + self.out(attend(query, key, value, segments).flatten(1))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class PoolingHead(nn.Module):
    """Attention pooling: one learned query gathers the tokens of each image."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.query = nn.Parameter(torch.empty(width))  # the probe after its own projection
        self.key_value = Linear(width, 2 * width)
        self.out = Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, tokens: Tensor, segments: Segments) -> Tensor:
        """[N, D] from [T, D]."""
        num_images = len(segments.lengths)
        query = self.query.view(self.num_heads, -1).expand(num_images, -1, -1)
        key_value = self.key_value(tokens).view(len(tokens), 2, self.num_heads, -1)
        key, value = key_value.unbind(dim=1)
        x = self.out(attend(query, key, value, segments).flatten(1))
        y: Tensor = x + self.mlp(self.norm(x))
        return y


class Mlp(nn.Module):
    """Two layers with tanh-approximated GELU between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, gelu=True)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, D] from [rows, D]."""
        return in_blocks(self._layers, x) if self.fc1.laid_out else self._layers(x)

    def _layers(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.fc1(x))
        return y
