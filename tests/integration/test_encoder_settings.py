"""What an Encoder takes from the configuration when it loads its weights."""

import pytest
import torch

from pipeline import actors
from pipeline.config_file import load_config
from pipeline.storage import Storage
from pipeline.work import prepare_work


@pytest.fixture
def load(write_config, tmp_path):
    """The encoder of a configuration with these sections."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar").write_bytes(b"")
    before = torch.get_num_threads()

    def load(**sections):
        config = load_config(write_config(**sections))
        storage = Storage(config.storage)
        return actors._load(prepare_work(config, storage).plan, storage)

    yield load
    torch.set_num_threads(before)


@pytest.mark.parametrize(("num_cpus", "threads"), [(1, 1), (2, 2), (0.5, 1)])
def test_threads_are_those_that_the_cluster_counts_for_it(load, num_cpus, threads):
    torch.set_num_threads(3)
    load(workers={"encoders": {"num_gpus": 0, "device": "cpu", "num_cpus": num_cpus}})
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("wanted", "found"), [(300, 300), (None, 4096)])
def test_tokens_of_a_forward_pass(load, wanted, found):
    assert load(model={"forward_tokens": wanted}).forward_tokens == found
