"""What README and how-tos tell people to type, typed in the order in which it stands there.

Commands that need a cloud, a registry or Kubernetes are parsed in tests/test_operations.py;
`ray job submit` runs in test_jobs.py, the other pages' Python in tests/encoder/test_library.py,
test_search.py and tests/pipeline/test_ray_data.py.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from encoder.batch import PackMismatchError
from tests.integration.conftest import REPOSITORY, read_rows

README = (REPOSITORY / "README.md").read_text()
RESUME = (REPOSITORY / "docs" / "howto" / "resume.md").read_text()
S3 = (REPOSITORY / "docs" / "howto" / "s3.md").read_text()
ELSEWHERE = "ray job submit"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photos, checkpoint):
    """A folder as README supposes it: photos, and an environment that has embedmill."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "photos" / "sub folder").mkdir(parents=True)
    for number, (name, data) in enumerate(photos.items()):
        where = folder / "photos" / ("sub folder" if number % 2 else "")
        (where / name).write_bytes(data)
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    program = bin_folder / "embedmill"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m pipeline "$@"\n'
    )
    program.chmod(0o755)
    (bin_folder / "activate").write_text(f'PATH="{bin_folder}:$PATH"\n')
    (config,) = blocks(README, "yaml")
    name = "google/siglip2-base-patch16-naflex"
    assert config.count(name) == 1
    (folder / "run.yaml").write_text(config.replace(name, str(checkpoint)))
    return folder


def type_in(folder, script):
    """What a shell prints; every command must succeed."""
    environment = {**os.environ, "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_readme_then_resume_then_s3(folder, photos):
    said = type_in(folder, "".join(b for b in blocks(README, "bash") if ELSEWHERE not in b))
    assert f"{len(photos)} images read = {len(photos)} embedded + 0 rejected" in said
    assert "wrote report.html" in said
    keys = {row["key"] for row in read_rows(folder / "out")}
    assert len(keys) == len(photos)
    assert any(key.startswith("sub folder/") for key in keys)
    assert len(blocks(RESUME, "bash")) == 3
    said = type_in(folder, "".join(blocks(RESUME, "bash")))
    assert "Nothing to do: all 1 shards are done" in said
    said = type_in(folder, "".join(blocks(S3, "bash")))
    assert "1 done, 0 to do" in said


def test_a_wrong_command_would_be_seen(folder):
    with pytest.raises(AssertionError, match="No such command"):
        type_in(folder, "embedmill runn run.yaml\necho done")


def test_the_mismatch_names_the_image():
    (code,) = blocks(README, "python")
    data = {
        "pixel_values": np.zeros((4096, 768), np.uint8),
        "spatial_shapes": np.array([(64, 32), (51, 40)]),
        "rows_per_image": [2048, 2048],
        "names": ["first.jpg", "second.jpg"],
    }
    with pytest.raises(PackMismatchError, match=r"second\.jpg"):
        exec(code, data)
