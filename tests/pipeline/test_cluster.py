"""Object stores that are too small for a run are told of, with the settings to lower."""

import pytest

from pipeline.cluster import _check_stores, _local_store_bytes
from pipeline.config import RunConfig
from pipeline.memory import store_bytes

SETTINGS = "packing.token_budget, packing.packs_in_flight or workers.preprocessors.max"


@pytest.fixture
def config():
    raw = {"input": {"shards": ["a.tar"]}, "output": {"path": "out"}, "model": {"checkpoint": "c"}}
    return RunConfig.model_validate(raw | {"workers": {"preprocessors": {"max": 4}}})


def node(*, cpus, store, alive=True):
    resources = {"CPU": float(cpus), "object_store_memory": float(store)}
    return {"NodeID": "0123456789ab", "Alive": alive, "Resources": resources}


def test_a_store_of_its_own_is_twice_what_the_packs_take_where_there_is_room(config, caplog):
    need = store_bytes(config)
    assert _local_store_bytes(config, free=64 << 30) == 2 * need
    assert _local_store_bytes(config, free=2 * need - 1) == need
    assert not caplog.messages


def test_a_small_shared_memory_is_told_of(config, caplog, monkeypatch):
    monkeypatch.setenv("RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE", "1")
    _local_store_bytes(config, free=64 << 20)  # what Docker gives
    (message,) = caplog.messages
    assert "/dev/shm" in message
    assert "has 64 MB free" in message
    assert "--shm-size" in message
    assert SETTINGS in message


def test_nodes_with_a_small_store_are_told_of(config, caplog):
    each = store_bytes(config) // 4
    large, small = node(cpus=64, store=4 * each), node(cpus=2, store=2 * each - 1)
    _check_stores(config, [large, node(cpus=0, store=0), node(cpus=2, store=0, alive=False)])
    assert not caplog.messages
    _check_stores(config, [large, small])
    (message,) = caplog.messages
    assert "node 01234567" in message
    assert "packs of 2 Preprocessors" in message
    assert SETTINGS in message
