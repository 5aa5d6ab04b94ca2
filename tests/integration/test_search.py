"""The how-to on search, block by block, over a real output."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipeline.outputs import Output

pytest.importorskip("lancedb", reason="the readers: pip install embedmill[readers]")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "search.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the SWIG wrapper of faiss
def test_all_find_the_image_itself_and_agree_on_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = Output(f"file://{tmp_path}/out", output={"path": f"{tmp_path}/out"})
    output.publish("0-empty", (), rejects={"bad": "unknown_format"})
    output.publish("a")
    output.publish("b", ("x", "y"))
    found = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, found)
    lance = [(row["shard"], row["key"]) for row in found["rows"]]
    duck = [(shard, key) for shard, key, _ in found["similar"]]
    assert found["nearest"] == lance == duck
    first = found["images"][0]
    assert found["nearest"][0] == first
    assert found["similar"][0][2] == pytest.approx(1, abs=1e-3)
    rows = [
        row for path in Path("out/embeddings").iterdir() for row in pq.read_table(path).to_pylist()
    ]
    assert len(found["images"]) == len(rows) == 5
    assert found["reasons"].fetchall() == [("unknown_format", 1)]
    assert found["wide"].fetchall()[0][0] == sum(row["width"] > 2 * row["height"] for row in rows)
