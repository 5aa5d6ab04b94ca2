"""Modules that the documentation names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NAME = re.compile(r"`(?:python -m )?((?:encoder|pipeline)(?:/\w+\.py|\.[a-z_]+)+)")


def modules_named(text):
    """Repository paths of the modules that a page names, as `pipeline/tar.py` or `pipeline.tar.x`."""
    for name in NAME.findall(text):
        yield name if "/" in name else "/".join(name.split(".")[:2]) + ".py"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_each_exists(page):
    missing = [name for name in modules_named(page.read_text()) if not (ROOT / name).is_file()]
    assert not missing


def test_names_are_found_in_all_their_forms():
    text = "`pipeline.tar` `encoder.batch.check_packed(x)` `pipeline/driver.py` pipeline.no"
    expected = ["pipeline/tar.py", "encoder/batch.py", "pipeline/driver.py"]
    assert list(modules_named(text)) == expected
