"""`embedmill report` from the command line."""

import subprocess
import sys
from unittest.mock import patch

import pytest
import yaml

from tests.integration.conftest import REPOSITORY, embedmill
from tests.pipeline.outputs import Output
from tests.pipeline.tar_files import tar_bytes


@pytest.fixture
def publish(photos):
    """A function that publishes a shard of two photos, a key that is not in it, and a reject."""

    def publish(output, shard):
        names = ("falcon.jpg", "soup.jpg")
        members = [(name, photos[name]) for name in names] + [("cut.jpg", photos["soup.jpg"][:999])]
        output.storage.put(shard, tar_bytes(members))
        with patch("tests.pipeline.outputs.shard_id", lambda name: shard):
            output.publish("a", ("falcon", "soup", "gone"), rejects={"cut": "truncated_image"})

    return publish


def test_a_local_output_has_a_page_with_pictures(tmp_path, publish):
    output, page = Output(f"file://{tmp_path}/out"), tmp_path / "report.html"
    publish(output, f"file://{tmp_path}/a.tar")
    run = embedmill("report", tmp_path / "out", "--html", page)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"wrote {page} ({page.stat().st_size:,} bytes)\n"
    text = page.read_text()
    assert "4 read = 3 embedded + 1 rejected" in text
    assert text.count('src="data:image/webp') >= 2
    assert "1 picture missing, the first because of this: not found in its shard" in text


def test_a_folder_that_is_no_output_is_refused(tmp_path):
    run = embedmill("report", tmp_path)
    assert run.returncode == 2
    assert "it has no _run.json" in run.stderr


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_is_named_with_the_remedy(library):
    code = (
        f"import sys; sys.modules[{library!r}] = None; sys.argv = ['embedmill', 'report', '-']; "
        "from pipeline.cli import main; main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    assert run.returncode == 2
    assert f"report needs {library}" in run.stderr
    assert "pip install 'embedmill[report]'" in run.stderr


def test_output_input_and_page_may_be_in_a_bucket(s3, tmp_path, publish):
    folder, page = "s3://bucket/report", "s3://bucket/report/page.html"
    raw = {
        "input": {"shards": f"{folder}/in/*.tar"},
        "output": {"path": f"{folder}/out"},
        "model": {"checkpoint": "seeded"},
        "storage": {"s3": s3.options},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    output = Output(f"{folder}/out", storage=raw["storage"])
    publish(output, f"{folder}/in/a.tar")
    output.storage.put(f"{folder}/in/b.tar", b"")
    run = embedmill("report", output.path, "--html", page, "--config", tmp_path / "run.yaml")
    assert run.returncode == 0, run.stderr
    text = output.storage.read(page).decode()
    assert "1 of 2 shards still to do." in text
    assert text.count('src="data:image/webp') >= 2
    assert s3.options["secret_access_key"] not in text
