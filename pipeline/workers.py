"""How the actors are asked for: resources, devices, placement."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.actors import Encoder, Preprocessor
from pipeline.stage import RunPlan

# No restarts and no retries by Ray: the driver alone recreates actors and repeats leases.
_NO_RETRIES = {"max_restarts": 0, "max_task_retries": 0}


def new_encoder(plan: RunPlan) -> Any:
    """The handle of an Encoder that Ray is asked for; it may wait for a place."""
    pool = plan.config.workers.encoders
    options: dict[str, Any] = {"num_cpus": pool.num_cpus, "num_gpus": pool.num_gpus, **_NO_RETRIES}
    if pool.accelerator_type is not None:
        options["accelerator_type"] = pool.accelerator_type
    if pool.label_selector:
        options["label_selector"] = dict(pool.label_selector)
    if plan.config.device == "cpu":
        options["runtime_env"] = {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}
    return ray.remote(Encoder).options(**options).remote(plan)


def new_preprocessor(plan: RunPlan, near: str | None) -> Any:
    """The handle of a Preprocessor that Ray is asked for, on the node `near` where it has room."""
    pool = plan.config.workers.preprocessors
    options: dict[str, Any] = {"num_cpus": pool.num_cpus, **_NO_RETRIES}
    if pool.label_selector:
        options["label_selector"] = dict(pool.label_selector)
    elif near is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(near, soft=True)
    # Ray leaves GPUs visible to actors without one; an accidental CUDA context costs 500 MB.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    options["runtime_env"] = {"env_vars": hidden}
    return ray.remote(Preprocessor).options(**options).remote(plan)
