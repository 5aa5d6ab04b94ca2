"""The encoder that a run's plan describes, loaded on this machine."""

import torch

from encoder.config import CheckpointError
from encoder.infer import Encoder, load_encoder
from pipeline.checkpoint_cache import local_checkpoint
from pipeline.config import RunConfig
from pipeline.manifest import ModelFacts
from pipeline.stage import wanted_output
from pipeline.storage import Storage


def device_here(config: RunConfig) -> str:
    """The run's device, or cpu where this machine has no GPU."""
    return config.device if torch.cuda.is_available() else "cpu"


def load_run_encoder(
    config: RunConfig, model: ModelFacts, storage: Storage, *, device: str
) -> Encoder:
    """The encoder; raises CheckpointError where the weights are not those of the plan."""
    encoder = load_encoder(
        local_checkpoint(config.model.checkpoint, storage),
        revision=model.revision,
        device=device,
        dtype=config.model_dtype,
        attention=config.model.attention if device == config.device else "auto",
        prefix=config.model.prefix,
        output=wanted_output(config.output),
        forward_tokens=config.model.forward_tokens,
    )
    if encoder.digest != model.digest:
        raise CheckpointError(
            f"the weights must be the run's on every machine: digest {model.digest[:16]}, here "
            f"{model.checkpoint} has {encoder.digest[:16]}. Give all machines the same files."
        )
    return encoder
