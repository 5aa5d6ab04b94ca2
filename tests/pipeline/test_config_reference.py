"""The schema and the reference page: current, complete, and of use to editors and shells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.config_reference import config_keys, config_schema
from tests.integration.conftest import REPOSITORY, embedmill

PROGRAM = Path(sys.executable).with_name("embedmill")
CONFIGS = sorted(REPOSITORY.glob("configs/*.yaml"))


def test_the_committed_schema_and_reference_are_current():
    page, schema = embedmill("schema", "--markdown"), embedmill("schema")
    assert (REPOSITORY / "docs" / "configuration.md").read_text() == page.stdout
    assert (REPOSITORY / "configs" / "embedmill.schema.json").read_text() == schema.stdout


def test_every_section_and_key_is_described_in_the_schema_and_on_the_page():
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    for section in config_schema()["$defs"].values():
        assert section["description"]
        for name, key in section["properties"].items():
            if "$ref" in key:  # a section, described with its own keys
                continue
            assert key["description"], name
            assert f"| `{name}` |" in page


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_follow_the_schema_and_name_it(path):
    if not path.is_symlink():  # the demo's is the package's file
        first, _ = path.read_text().split("\n", 1)
        assert (path.parent / first.removeprefix("# yaml-language-server: $schema=")).is_file()
    jsonschema.validate(yaml.safe_load(path.read_text()), config_schema())


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("packing", {"token_buget": 1}),
        ("packing", {"token_budget": "1"}),
        ("output", {"path": "out", "dtype": "float64"}),
        ("input", {"key_split": "last_dot"}),  # no shards
        ("limits", {"max_reject_share": 1.5}),
    ],
)
def test_the_schema_refuses_what_a_run_refuses(section, value):
    raw = yaml.safe_load(CONFIGS[0].read_text()) | {section: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(raw, config_schema())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("embedmill pl", ["plan"]),
        ("embedmill run run.yaml --set packing.l", ["packing.look_ahead="]),
        ("embedmill clean --dr", ["--dry-run"]),
    ],
)
def test_the_shell_completes_commands_options_and_keys(typed, offered):
    asked = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
        "_EMBEDMILL_COMPLETE": "complete_bash",
    }
    run = subprocess.run([PROGRAM], env=os.environ | asked, capture_output=True, text=True)
    assert run.stdout.split() == offered, run.stderr


def test_keys_for_set_are_dotted_paths_of_values():
    assert {"input.shards", "workers.encoders.num_gpus", "storage.s3"} <= {*config_keys()}
    assert "workers.encoders" not in config_keys()


def test_the_version_is_that_of_the_package():
    run = embedmill("--version")
    assert run.returncode == 0
    assert run.stdout.startswith("embedmill 0.")
    assert json.loads(embedmill("schema").stdout)["title"] == "embedmill run"
