"""`_run.json` there and back."""

import json

import pytest

from encoder.geometry import Geometry
from encoder.output import Readout
from pipeline.config import RunConfig, StorageConfig
from pipeline.errors import OutputError
from pipeline.manifest import ModelFacts, make_fingerprint, open_run
from pipeline.run_record import open_output, read_run
from pipeline.storage import Storage

OUTPUTS = [
    {"vectors": "pooled"},
    {"vectors": "pooled", "normalize": False, "dtype": "float32"},
    {"vectors": "mean", "layers": [-1, -2], "final_norm": False},
    {"vectors": "tokens", "layers": [-2]},
]


def record(tmp_path, output, **sections):
    """What was recorded, and what is read again."""
    raw = {"input": {"shards": ["s3://in/{0..3}.tar"]}, "model": {"checkpoint": "some/model"}}
    raw["output"] = {"path": str(tmp_path), **output}
    config = RunConfig.model_validate(raw | sections)
    readout = Readout(
        vectors=config.output.vectors,
        states=(11, 12),
        norm_after=None,
        normalize=config.output.normalize,
        dtype=config.output.dtype,
        width=16,
    )
    model = ModelFacts(
        checkpoint="some/model",
        revision="abc",
        digest="d" * 64,
        geometry=Geometry(patch_size=16, max_num_patches=256),
        readout=readout,
    )
    fingerprint = make_fingerprint(config, model, "torch")
    storage = Storage(config.storage)
    open_run(storage, f"file://{tmp_path}", config, model, fingerprint)
    return config, model, fingerprint, read_run(storage, f"file://{tmp_path}")


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_record_is_read_as_it_was_made(tmp_path, output):
    config, model, fingerprint, found = record(tmp_path, output)
    assert found.config == config
    assert found.model == model
    assert (found.fingerprint, found.fields) == (fingerprint.sha, fingerprint.fields)


def test_hidden_store_options_are_left_out_and_others_are_used(tmp_path):
    options = {"endpoint": "http://127.0.0.1:1", "secret_access_key": "hunter2"}
    *_, found = record(tmp_path, {}, storage={"s3": options, "retries": 2})
    assert found.config.storage.s3 == {"endpoint": "http://127.0.0.1:1"}
    storage, url, _ = open_output(str(tmp_path), None)
    assert url == f"file://{tmp_path}"
    assert storage._config == found.config.storage


def test_a_given_configuration_has_the_last_word_on_the_store(tmp_path):
    config, *_ = record(tmp_path, {}, storage={"retries": 2})
    given = config.model_copy(update={"storage": StorageConfig(retries=1)})
    storage, _, found = open_output(str(tmp_path), given)
    assert storage._config.retries == 1
    assert found.config.storage.retries == 2


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"fingerprint": "x", "fields": {}, "config": {}}', "not json"],
)
def test_what_is_no_record_is_refused(tmp_path, content):
    (tmp_path / "_run.json").write_text(content)
    with pytest.raises(OutputError, match=r"_run.json is no record of a run"):
        read_run(Storage(StorageConfig()), f"file://{tmp_path}")


def test_a_folder_without_a_record_is_no_output(tmp_path):
    with pytest.raises(OutputError, match=r"has no _run.json"):
        read_run(Storage(StorageConfig()), f"file://{tmp_path}")


def test_another_release_may_have_added_a_model_field(tmp_path):
    record(tmp_path, {})
    stored = json.loads((tmp_path / "_run.json").read_text())
    stored["model"]["readout"]["new"] = 1
    (tmp_path / "_run.json").write_text(json.dumps(stored))
    with pytest.raises(OutputError, match="unexpected keyword argument 'new'"):
        read_run(Storage(StorageConfig()), f"file://{tmp_path}")
