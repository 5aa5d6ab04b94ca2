import pytest
import yaml
from pydantic import ValidationError

from pipeline.config_file import load_config, parse_config
from pipeline.errors import ConfigError
from tests.integration.conftest import REPOSITORY

GOOD = """
input: {shards: "data/{00000..00003}.tar"}
output: {path: out/}
model: {checkpoint: some/model}
"""


def parse(text, *overrides):
    return parse_config(text, overrides, name="run.yaml")


def refused(text, *overrides) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return str(caught.value)


def with_section(text):
    return GOOD + text


def with_output(text):
    return GOOD.replace("path: out/", f"path: out/, {text}")


def test_the_smallest_configuration_has_the_documented_defaults():
    config = parse(GOOD)
    assert config.input.shards == "data/{00000..00003}.tar"
    assert (config.output.dtype, config.output.normalize) == ("float16", True)
    assert config.preprocess.max_num_patches is None  # the checkpoint's
    assert config.packing.token_budget == 16384
    assert (config.workers.encoders.min, config.workers.encoders.num_gpus) == (1, 1)
    assert (config.workers.preprocessors.max, config.workers.start_timeout_s) == (2, 600)
    assert (config.limits.max_reject_share, config.limits.shard_attempts) == (0.5, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (with_section("packing: {token_buget: 1}"), "did you mean token_budget?"),
        (with_section("packings: {}"), "packings: unknown key (did you mean packing?)"),
        (
            with_section("packing: {token_budget: many}"),
            "packing.token_budget: should be a valid int",
        ),
        (
            with_section("packing: {token_budget: 100}\npreprocess: {max_num_patches: 256}"),
            "preprocess.max_num_patches (256), got 100",
        ),
        (with_output("layers: [-2]"), "layers has no effect on vectors: pooled; leave it out"),
        (with_output("final_norm: false"), "final_norm has no effect on vectors: pooled"),
        (
            with_output("vectors: tokens, normalize: true"),
            "normalize has no effect on vectors: tok",
        ),
        (with_output("vectors: mean, layers: []"), "layers must name at least one layer"),
        (with_output("vectors: all"), "output.vectors: should be 'pooled', 'mean' or 'tokens'"),
        (
            with_section("preprocess: {decode: fast}"),
            "preprocess.decode: should be 'exact' or 'red",
        ),
        (with_section("workers: {encoders: {min: 3, max: 2}}"), "min 3 and max 2"),
        (
            with_section("limits: {max_reject_share: 1.5}"),
            "limits.max_reject_share: should be less",
        ),
        (
            GOOD.replace("some/model}", "some/model, revision: 1234567}"),
            'write "1234567" with quotes',
        ),
        (GOOD.replace('"data/{00000..00003}.tar"', "{00000..00003}.tar"), "double quotes"),
        (GOOD.replace('"data/{00000..00003}.tar"', "*.tar"), "double quotes"),
        (GOOD.replace("path: out/", "dtype: float16"), "output.path: must be given"),
        (GOOD.replace('shards: "data/{00000..00003}.tar"', "shards: []"), "shards or shards_file"),
        (GOOD + "model: {checkpoint: other}", "'model' is given twice"),
        ("- a list", "must be a mapping of sections"),
        (GOOD + "packing: [", "line 5"),
        (with_section("input: {shards: [1]}").replace(GOOD.split("\n")[1], ""), "input.shards"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_remedy(text, said):
    assert said in refused(text)


def test_every_mistake_is_told_at_once():
    said = refused(with_section("packing: {token_buget: 1}\npreprocess: {decode: fast}"))
    assert "2 mistake(s) in run.yaml" in said


def test_unknown_keys_list_the_known_ones():
    assert "known here: look_ahead, packs_in_flight" in refused(with_section("packing: {x: 1}"))


def test_set_changes_the_mapping_before_validation():
    config = parse(GOOD, "packing.token_budget=512", "output.dtype=float32", "ray.address=null")
    assert (config.packing.token_budget, config.output.dtype) == (512, "float32")
    assert parse(GOOD, "input.shards=x/{0..3}.tar").input.shards == "x/{0..3}.tar"
    assert parse(GOOD, "input.shards=*.tar").input.shards == "*.tar"
    assert parse(GOOD, "input.shards={0..3}.tar").input.shards == "{0..3}.tar"


@pytest.mark.parametrize("override", ["packing", "=3", "packing..x=1", "output.path.x=1"])
def test_a_set_that_cannot_be_applied_is_named(override):
    assert override in refused(GOOD, override)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_configurations_are_frozen():
    with pytest.raises(ValidationError):
        parse(GOOD).packing.token_budget = 1


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("configs/*.yaml")), ids=lambda p: p.name)
def test_shipped_configurations_are_valid(path):
    config = load_config(path)
    assert yaml.safe_load(path.read_text())["model"]["checkpoint"] == config.model.checkpoint


def test_auto_is_resolved_from_the_configuration_alone():
    on_gpu, on_cpu = parse(GOOD), parse(GOOD, "workers.encoders.num_gpus=0")
    assert (on_gpu.device, on_gpu.model_dtype) == ("cuda", "bfloat16")
    assert (on_cpu.device, on_cpu.model_dtype) == ("cpu", "float32")
