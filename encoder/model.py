"""The SigLIP2 NaFlex vision tower on packed images, as in transformers' Siglip2VisionModel.

Letters: N images in a pack, T tokens, P values in a patch, D width, H heads, W head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoder.attention import Segments, attend
from encoder.config import EncoderConfig

__all__ = ["BYTE_CENTRE", "VisionTower"]

# Bytes are centred before the first matrix product. -128..127 are exact in bfloat16, and images
# average near 0; with 0..255 the products cancel (bfloat16, gray patches: error 2.2 % and 0.25 %).
# The patch weights hold the rest of the normalisation, see encoder.weights.
BYTE_CENTRE = 128


class VisionTower(nn.Module):
    """Patches of a pack -> tokens -> one vector for each image."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.patch = nn.Linear(config.patch_values, width)
        self.positions = nn.Parameter(torch.empty(config.grid_side, config.grid_side, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.head = PoolingHead(config)

    def tokens(self, pixel_values: Tensor, positions: Tensor, segments: Segments) -> Tensor:
        """[T, D] last hidden state after the final norm.

        `pixel_values` [T, P] uint8; `positions` [T, D], see encoder.position.
        """
        x = self.patch(pixel_values.to(self.patch.weight.dtype) - BYTE_CENTRE) + positions
        for block in self.blocks:
            x = block(x, segments)
        tokens: Tensor = self.norm(x)
        return tokens

    def pool(self, tokens: Tensor, segments: Segments) -> Tensor:
        """[N, D] one vector for each image from its tokens [T, D]; not normalised."""
        pooled: Tensor = self.head(tokens, segments)
        return pooled


class Block(nn.Module):
    """Pre-norm transformer block; query, key and value come from one product."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.num_heads = config.num_attention_heads
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
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
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
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
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, D] from [rows, D]."""
        y: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return y
