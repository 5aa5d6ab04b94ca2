"""What the operating instructions say, held against the program: commands, settings, tables."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from ray.scripts.scripts import cli as ray_cli

import pipeline.cli
from pipeline.config import RunConfig
from pipeline.config_file import validate_config
from pipeline.memory import store_bytes
from pipeline.records import RejectReason
from pipeline.stores import make_store
from pipeline.urls import locate

ROOT = Path(__file__).parent.parent
OPERATIONS = ROOT / "docs" / "operations.md"
PAGES = [OPERATIONS, *sorted((ROOT / "docs" / "howto").glob("*.md"))]
CONFIG = {
    "input": {"shards": "s3://bucket/{0..9}.tar"},
    "output": {"path": "s3://bucket/out"},
    "model": {"checkpoint": "owner/name"},
}


def blocks(page, language):
    """The fenced blocks of one language on a page, without their indentation."""
    pattern = rf"^( *)```{language}\n(.*?)^ *```$"
    for indent, text in re.findall(pattern, page.read_text(), flags=re.MULTILINE | re.DOTALL):
        yield re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


def commands(page):
    for text in blocks(page, "bash"):
        yield from text.replace("\\\n", " ").splitlines()


def section(page, title):
    return page.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(page, title):
    """The first cell of each row of the first table of a section, header left out."""
    rows = [line for line in section(page, title).splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip().strip("`") for row in rows[2:]]


def parse(command, arguments):
    """None; raises what the command line would raise for these arguments. Runs nothing."""
    context = command.make_context(command.name, list(arguments))
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        _, subcommand, rest = command.resolve_command(context, rest)
        parse(subcommand, rest)


def check(words):
    """None; asserts that a documented command could be typed as it stands."""
    program, *arguments = words
    if program == "embedmill" or words[:3] == ["python", "-m", "pipeline"]:
        start = 1 if program == "embedmill" else 3
        parse(typer.main.get_command(pipeline.cli.app), words[start:])
    elif program == "ray":
        parse(ray_cli, arguments)
        if "--" in arguments:
            check(arguments[arguments.index("--") + 1 :])
    elif words[:2] == ["docker", "run"]:
        image = next(i for i, word in enumerate(words) if word.startswith("embedmill:"))
        check(words[image + 1 :])
    else:
        assert program in {"autofaiss", "aws", "docker", "export", "kubectl"}
    for word in words:
        if word.startswith(("configs/", "docker/", "docs/")):
            assert (ROOT / word).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_can_be_typed(page):
    found = [shlex.split(line) for line in commands(page)]
    assert found or any(blocks(page, "python"))
    for words in found:
        check(words)


@pytest.mark.parametrize(
    "line",
    ["embedmill run", "embedmill runn run.yaml", "ray job submit --wait -- embedmill plan x"],
)
def test_a_wrong_command_would_be_seen(line):
    with pytest.raises(Exception, match=r"Missing|No such (command|option)"):
        check(shlex.split(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_settings_are_valid(page):
    for text in blocks(page, "yaml"):
        config = validate_config(CONFIG | yaml.safe_load(text), name=page.name)
        if config.storage.s3:
            make_store(locate(config.output.path), config.storage, 1.0)
    for text in blocks(page, "json"):
        json.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page):
    sections = "|".join(RunConfig.model_fields)
    for name in re.findall(rf"`((?:{sections})\.[a-z0-9_.]+)", page.read_text()):
        model = RunConfig
        for part in name.split("."):
            if model is dict:  # options of a store
                break
            assert part in model.model_fields, name
            annotation = model.model_fields[part].annotation
            model = annotation if hasattr(annotation, "model_fields") else dict


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).is_file(), target
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        text = (page.parent / target).read_text() if target else page.read_text()
        titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        assert anchor in [title.lower().replace(" ", "-") for title in titles], anchor


def exit_codes():
    """Every code that the command line names, as a number in its source."""
    calls = [
        node
        for node in ast.walk(ast.parse(Path(pipeline.cli.__file__).read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("Exit", "exit", "_fail")
    ]
    return {
        argument.value
        for call in calls
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def test_every_exit_code_is_explained():
    explained = [int(cell) for cell in first_cells(OPERATIONS, "Exit codes")]
    assert explained == sorted(exit_codes())
    assert len(explained) == 5


def test_every_reject_reason_is_explained():
    reasons = [reason.value for reason in RejectReason]
    assert first_cells(OPERATIONS, "Rejected images") == reasons
    formats = (ROOT / "docs" / "formats.md").read_text()
    assert all(f"`{reason}`" in formats for reason in reasons)


def test_the_table_of_the_object_store_is_what_a_run_reserves():
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) GB \|$", section(OPERATIONS, "Memory"), re.MULTILINE)
    assert len(rows) == 4
    for count, gigabytes in rows:
        pool = {"preprocessors": {"min": 1, "max": int(count)}}
        config = validate_config(CONFIG | {"workers": pool}, name="defaults")
        assert f"{store_bytes(config) / 1e9:.2f}" == gigabytes


def test_the_sizing_table_follows_from_its_formula():
    text = section(OPERATIONS, "Sizing")
    base, so400m = (
        float(n) for n in re.search(r"\(([\d.]+) GFLOP.*?, ([\d.]+)", text, re.S).groups()
    )
    per_core = int(re.search(r"(\d+) images/s from a core", text)[1])
    rows = re.findall(
        r"^\| .*? \| (\d+) \| (.+?) \| (\d+) \| (.+?) \| (\d+) \|$", text, re.MULTILINE
    )
    assert len(rows) == 3
    for tflops, *cells in rows:
        for flops, rate, cores in ((base, *cells[:2]), (so400m, *cells[2:])):
            limit = float(tflops) * 1e12 / 2 / (flops * 1e9)
            assert float(rate.replace(",", "")) == pytest.approx(limit, rel=0.01)
            assert int(cores) == pytest.approx(limit / per_core, abs=0.6)
