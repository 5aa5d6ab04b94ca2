"""An Encoder on a CPU computes with as many threads as the cluster counts for it."""

import pytest
import torch

from pipeline import actors
from pipeline.config_file import load_config
from pipeline.storage import Storage
from pipeline.work import prepare_work


@pytest.mark.parametrize(("num_cpus", "threads"), [(1, 1), (2, 2), (0.5, 1)])
def test_threads_are_those_of_the_actor(write_config, tmp_path, num_cpus, threads):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar").write_bytes(b"")
    encoders = {"num_gpus": 0, "device": "cpu", "num_cpus": num_cpus}
    config = load_config(write_config(workers={"encoders": encoders}))
    storage = Storage(config.storage)
    plan = prepare_work(config, storage).plan
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        actors._load(plan, storage)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
