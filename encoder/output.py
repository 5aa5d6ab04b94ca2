"""What an encoder returns for an image: the pooled vector, the mean of its tokens, or all of them.

No torch: the driver knows the width of the output before any encoder starts.
"""

from dataclasses import dataclass
from typing import Literal

from encoder.config import CheckpointError, EncoderConfig
from encoder.tensors import TowerParts

__all__ = ["Output", "Readout", "resolve_output"]

Vectors = Literal["pooled", "mean", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of the tower.

    Layers count as transformers' `hidden_states` do: 0 is what enters the first block, -1 what
    leaves the last, -2 what leaves the one before. Several are joined value by value, in the order
    given. The final norm is for the last block alone; with it, -1 is `last_hidden_state`.
    """

    vectors: Vectors = "pooled"  # the pooling head's vector, the mean of tokens, all tokens
    layers: tuple[int, ...] | None = None  # of mean and tokens; None: what the checkpoint names
    final_norm: bool = True  # of mean and tokens
    normalize: bool = True  # pooled and mean: unit length; tokens are left as they are
    dtype: Literal["float32", "float16"] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """An output in terms of one tower: what has to be run and kept."""

    vectors: Vectors
    states: tuple[int, ...]  # blocks run before each hidden state is taken
    norm_after: int | None  # the final norm is applied to the state after so many blocks
    normalize: bool
    dtype: Literal["float32", "float16"]
    width: int  # values of a vector, or of each token

    @property
    def blocks(self) -> int:
        """How many blocks have to run."""
        return max(self.states)


def resolve_output(
    output: Output, config: EncoderConfig, parts: TowerParts, *, where: str
) -> Readout:
    """The readout of an output; raises CheckpointError where the tower lacks a part it needs."""
    pooled, depth = output.vectors == "pooled", config.num_hidden_layers
    if pooled and not parts.head:
        raise CheckpointError(
            f"Pooled vectors need the pooling head, which {where} does not have. Use the mean of "
            "its tokens, or the tokens."
        )
    layers = (-1,) if pooled else output.layers
    if layers is None:
        layers = config.feature_layers
    states = tuple(_state(layer, depth, parts.blocks, where) for layer in layers)
    if not states:
        raise ValueError("layers must name at least one layer, found none.")
    needs_norm = depth in states and (pooled or output.final_norm)
    if needs_norm and not parts.norm:
        raise CheckpointError(
            f"The tokens of the last layer need the final norm, which {where} does not have. Set "
            "final_norm to false, or choose another layer."
        )
    return Readout(
        vectors=output.vectors,
        states=states,
        norm_after=depth if needs_norm else None,
        normalize=output.normalize and output.vectors != "tokens",
        dtype=output.dtype,
        width=len(states) * config.hidden_size,
    )


def _state(layer: int, depth: int, blocks: int, where: str) -> int:
    state = layer if layer >= 0 else depth + 1 + layer
    if not 0 <= state <= depth:
        raise CheckpointError(
            f"layers must be from {-depth - 1} to {depth} for the {depth} layers of {where}, "
            f"found {layer}."
        )
    if state > blocks:
        raise CheckpointError(
            f"Layer {layer} is what leaves block {state}, but {where} holds only the first "
            f"{blocks} of {depth} blocks."
        )
    return state
