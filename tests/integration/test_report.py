"""`embedmill report` on real runs, from the command line."""

import subprocess
import sys

import pytest

from tests.integration.conftest import REPOSITORY, embedmill, write_shard


@pytest.fixture
def output(write_config, tmp_path, photos):
    """The output folder of a run over the bundled photos and one file that is no image."""
    members = dict(list(photos.items())[:4])
    write_shard(tmp_path / "shards" / "a.tar", members | {"broken.jpg": b"not an image"})
    run = embedmill("run", write_config())
    assert run.returncode == 0, run.stderr
    return tmp_path / "out"


def test_a_run_has_a_report_with_pictures(output, tmp_path):
    page = tmp_path / "report.html"
    run = embedmill("report", output, "--html", page)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"wrote {page} ({page.stat().st_size:,} bytes)\n"
    text = page.read_text()
    assert "5 read = 4 embedded + 1 rejected" in text
    assert "Every input shard has its output." in text
    assert text.count("data:image/webp") >= 4


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
