"""The lines in docs/operations.md that read a Preprocessor's rate from an output."""

import re

from tests.integration.conftest import REPOSITORY, write_shard
from tests.integration.test_plain_run import run


def test_the_documented_lines_print_a_rate_for_each_shard(
    photos, write_config, tmp_path, monkeypatch, capsys
):
    for name in "ab":
        write_shard(tmp_path / "shards" / f"{name}.tar", dict(list(photos.items())[:3]))
    run(write_config())
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)  # the page calls the output out/
    exec(lines, {})
    rates = re.findall(r"^(\w)-.*: ([\d.]+) images/s", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rates] == ["a", "b"]
    assert all(float(rate) > 0 for _, rate in rates)
