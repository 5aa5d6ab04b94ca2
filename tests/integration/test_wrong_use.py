"""Wrong configurations and wrong command lines: what the answer must say, as a person reads it.

Each answer names the place and the remedy, ends with exit code 2, shows no traceback, and nothing
is written.
"""

import re
import signal
import sys

import pytest

from pipeline.cli import main
from pipeline.config_file import load_config
from tests.integration.conftest import write_shard

GOOD = """\
input: {shards: "shards/*.tar"}
output: {path: out}
model: {checkpoint: checkpoint}
workers: {encoders: {num_gpus: 0}}
"""

# What is wrong in the text of a configuration, and what the answer must say, line breaks aside.
CONFIGURATIONS = {
    "a misspelt key": (
        GOOD + "packing: {token_buget: 4096}",
        "packing.token_buget: unknown key (did you mean token_budget?); known here: look_ahead,",
    ),
    "braces without quotes": (
        GOOD.replace('"shards/*.tar"', "{00000..00003}.tar"),
        "line 1, column 31: expected ',' or '}', but got '<scalar>'; "
        "YAML reads { [ * & ! % @ ` itself: put the whole value in double quotes",
    ),
    "a tab": (
        GOOD + "packing:\n\ttoken_budget: 4096",
        "line 6, column 1: found character '\\t' that cannot start any token; "
        "YAML takes spaces for indentation, no tabs",
    ),
    "a section that is missing": (
        GOOD.replace("model: {checkpoint: checkpoint}\n", ""),
        "model: must be given; a section with checkpoint",
    ),
    "a section without its keys": (
        GOOD.replace("workers: {encoders: {num_gpus: 0}}", "workers:"),
        "workers: should be a section with keys of its own (encoders, preprocessors, "
        "start_timeout_s), got None",
    ),
    "a number in quotes": (
        GOOD + 'preprocess: {max_num_patches: "256"}',
        "preprocess.max_num_patches: should be a valid integer, got '256'; "
        "write the number without quotes",
    ),
    "a revision that YAML reads as a number": (
        GOOD.replace("checkpoint}", "checkpoint, revision: 1234567}"),
        "model.revision: should be a valid string, got 1234567; "
        'YAML reads it as a number: write "1234567" with quotes',
    ),
    "shards that are not there": (
        GOOD.replace("shards/*.tar", "shards/*.tgz"),
        "no shard matches 'shards/*.tgz': looked in FOLDER/shards, which has a.tar",
    ),
    "braces that do not pair": (
        GOOD.replace("shards/*.tar", "shards/{0..3.tar"),
        "'shards/{0..3.tar': unbalanced braces; a range of shards is written {00000..00099}",
    ),
    "no checkpoint": (
        GOOD.replace("checkpoint: checkpoint", "checkpoint: ./weights"),
        "model.checkpoint: A checkpoint must be a folder with config.json and model.safetensors, "
        "or a Hugging Face repository id (owner/name), found no such folder at './weights'",
    ),
    "a layer that the model does not have": (
        GOOD.replace("path: out", "path: out, vectors: mean, layers: [-9]"),
        "output and model.checkpoint contradict: layers must be from -5 to 4 for the 4 layers of "
        "checkpoint, found -9",
    ),
    "packs smaller than an image": (
        GOOD + "packing: {token_budget: 100}",
        "packing.token_budget must hold an image of 256 patches, as checkpoint makes them, got "
        "100; raise it, or lower preprocess.max_num_patches",
    ),
    "a URL with one slash": (
        GOOD.replace("path: out", "path: s3:/bucket/out"),
        "s3:/bucket/out: a URL has two slashes, s3://bucket/out; a folder of that name is "
        "./s3:/bucket/out",
    ),
    "a store that is not known": (
        GOOD.replace("path: out", "path: ftp://host/out"),
        "ftp://host/out: the scheme must be one of file, s3, gs, az, http, https, memory, "
        "found 'ftp'",
    ),
    "a file where the output goes": (
        GOOD.replace("path: out", "path: checkpoint/config.json"),
        "cannot list file://FOLDER/checkpoint/config.json/embeddings: "
        "there is a file where a folder must be",
    ),
    "a key given twice": (
        GOOD + "model: {dtype: bfloat16}",
        "line 5, column 1: key 'model' is given twice",
    ),
    "a misspelt option of a store": (
        GOOD.replace("out}", "s3://bucket/out}") + "storage: {s3: {region: x, regoin: y}}",
        "storage.s3, needed for s3://bucket/out/embeddings: Configuration key: 'regoin' is not valid "
        "for store 'S3'.",
    ),
}

# Arguments, and what the answer must say.
COMMAND_LINES = {
    "runn good.yaml": "No such command 'runn'. Did you mean 'run'?",
    "run": "run --help' for help. Error Missing argument 'CONFIG'.",
    "run nowhere.yaml": "cannot read the configuration nowhere.yaml: No such file or directory. It "
    "must be a YAML file like those in configs/; docs/configuration.md has every key",
    "run shards/a.tar": "the configuration shards/a.tar must be a YAML file, found bytes that are "
    "no UTF-8 text; what is in a shard or an image tells: embedmill inspect shards/a.tar",
    "run good.yaml more.yaml": "Got unexpected extra argument(s) (more.yaml)",
    "run good.yaml --set packing": "--set takes section.key=value, got 'packing'",
    "run good.yaml --set workers=4": "workers: should be a section with keys of its own (encoders,",
    "run good.yaml --set packing.tokens=5": "packing.tokens: unknown key; known here: look_ahead, "
    "packs_in_flight, streams_per_encoder, token_budget",
    "run good.yaml --address 127.0.0.1:1": "a Ray cluster must answer at ray.address 127.0.0.1:1: "
    "[Errno 111] Connection refused. Is it the head's host:6379",
    "plan good.yaml --sett a=b": "No such option: --sett (Possible options: --set)",
    "verify good.yaml": "file://FOLDER/good.yaml must be the output folder of a run, what "
    "output.path names in its configuration; it has no _run.json",
    "verify shards --sample -1": "Invalid value for '--sample': Input should be greater than or "
    "equal to 0",
    "verify shards --config good.yaml --input x.tar": "--input and --config both name the input: "
    "give one of them",
    "inspect nothing.jpg": "'nothing.jpg' must name files that exist; not found: "
    "FOLDER/nothing.jpg",
    "inspect shards/a.tar --max-num-patches 0": "Invalid value for '--max-num-patches': Input "
    "should be greater than or equal to 1",
    "clean shards --shard": "Option '--shard' requires an argument.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photos, checkpoint):
    folder = tmp_path_factory.mktemp("wrong")
    write_shard(folder / "shards" / "a.tar", dict(list(photos.items())[:2]))
    (folder / "checkpoint").symlink_to(checkpoint)
    (folder / "good.yaml").write_text(GOOD)
    return folder


@pytest.fixture
def refused(folder, monkeypatch, capsys):
    """A function from arguments to what the program answers, in one line, FOLDER for its path."""
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "500")

    def answer(*arguments):
        before = sorted(folder.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["embedmill", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said, errors = capsys.readouterr()
        assert (end.value.code, said) == (2, ""), errors
        assert "Traceback" not in errors
        assert sorted(folder.rglob("*")) == before
        return re.sub(r"[\s│╭╰╮╯─]+", " ", errors).replace(str(folder), "FOLDER")

    yield answer
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_wrong_configuration_is_answered_with_place_and_remedy(case, refused, tmp_path):
    text, expected = CONFIGURATIONS[case]
    (tmp_path / "wrong.yaml").write_text(text)
    assert expected in refused("plan", str(tmp_path / "wrong.yaml"))


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_wrong_command_line_is_answered_with_place_and_remedy(line, refused):
    assert COMMAND_LINES[line] in refused(*line.split())


def test_the_configuration_that_the_cases_change_is_right(folder):
    assert load_config(folder / "good.yaml").output.path == "out"
    assert len(CONFIGURATIONS) >= 10 <= len(COMMAND_LINES)
