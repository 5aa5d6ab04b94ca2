"""The embeddings folder as it is, read by what people read such folders with.

One shard without rows sorts before the others, so that a reader that looks at the first file only
sees it. Values are compared with what Parquet itself holds.
"""

import json
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.pipeline.outputs import Output

KEYS = ["k0", "k1", "k2", "x", "y"]

pytest.importorskip("embedding_reader", reason="the readers: pip install embedmill[readers]")


@pytest.fixture(params=["float16", "float32"])
def dtype(request):
    return request.param


@pytest.fixture
def folder(tmp_path, dtype):
    """embeddings/ of three shards: none, three and two rows; rejects lie beside it."""
    path = tmp_path / "out"
    output = Output(f"file://{path}", output={"path": str(path), "dtype": dtype})
    output.publish("0-empty", (), rejects={"bad": "unknown_format"})
    output.publish("a", rejects={"bad": "unknown_format"})
    output.publish("b", ("x", "y"))
    return path / "embeddings"


@pytest.fixture
def vectors(folder, dtype):
    """[5, 8] in the order of KEYS."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    assert [table.num_rows for table in tables] == [0, 3, 2]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["key"] for row in rows] == KEYS
    return np.array([row["embedding"] for row in rows], dtype=dtype)


def test_pyarrow_dataset(folder, vectors, dtype):
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(folder).to_table().sort_by([("shard", "ascending")])
    assert table.column("key").to_pylist() == KEYS
    found = table.column("embedding").combine_chunks().flatten().to_numpy().reshape(5, -1)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, vectors)


def test_pandas(folder, vectors, dtype):
    import pandas

    frame = pandas.read_parquet(folder).sort_values(["shard", "index"])
    assert list(frame.key) == KEYS
    found = np.stack(frame.embedding.to_numpy())
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, vectors)


def test_duckdb(folder, vectors):
    import duckdb

    query = f"SELECT key, embedding FROM '{folder}/*.parquet' ORDER BY shard, index"
    rows = duckdb.sql(query).fetchall()
    assert [key for key, _ in rows] == KEYS
    np.testing.assert_array_equal(np.array([vector for _, vector in rows]), vectors)
    similar = (
        f"SELECT b.key FROM '{folder}/*.parquet' a, '{folder}/*.parquet' b WHERE a.key = 'x' ORDER BY "
        "list_cosine_similarity(a.embedding, b.embedding) DESC LIMIT 1"
    )
    assert duckdb.sql(similar).fetchall() == [("x",)]


def test_hugging_face_datasets(folder, vectors, tmp_path, dtype, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    data = datasets.load_dataset(
        "parquet", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(data["key"]) == KEYS
    assert data.features["embedding"].feature.dtype == dtype
    np.testing.assert_array_equal(np.array(data["embedding"]), vectors)


def test_embedding_reader(folder, vectors):
    from embedding_reader import EmbeddingReader

    reader = EmbeddingReader(
        embeddings_folder=str(folder),
        file_format="parquet",
        embedding_column="embedding",
        meta_columns=["key", "shard", "index"],
    )
    assert (reader.count, reader.dimension) == (5, 8)
    found, keys = [], []
    for batch, meta in reader(batch_size=2, start=0, end=reader.count, show_progress=False):
        found.append(batch)
        keys += list(meta["key"])
    assert keys == KEYS
    np.testing.assert_array_equal(np.concatenate(found), vectors)


READ_WITH_RAY = """
import json, sys
import ray
ray.init(address="local", num_cpus=1, object_store_memory=80 << 20, include_dashboard=False,
         log_to_driver=False, logging_level="ERROR", _temp_dir=sys.argv[2])
try:
    rows = ray.data.read_parquet(sys.argv[1]).take_all()
finally:
    ray.shutdown()
rows.sort(key=lambda row: (row["shard"], row["index"]))
print(json.dumps([[row["key"] for row in rows], [list(row["embedding"]) for row in rows]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16"], indirect=True)  # the default; Ray takes seconds
def test_ray_data(folder, vectors):
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:  # a short path: it holds sockets
        command = [sys.executable, "-c", READ_WITH_RAY, str(folder), temporary]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    keys, found = json.loads(run.stdout.splitlines()[-1])
    assert keys == KEYS
    np.testing.assert_array_equal(np.array(found), vectors)
