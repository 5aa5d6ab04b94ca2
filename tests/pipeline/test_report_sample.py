"""A sample of rows is whole where there are few, and even where there are many."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline import report_sample
from pipeline.manifest import embeddings_url
from pipeline.object_file import ObjectFile
from pipeline.report_sample import read_examples, read_sample
from pipeline.tables import embeddings_schema, rows_table
from tests.pipeline.outputs import WIDTH, Output, shard_id


@pytest.fixture(params=["file", "memory"])
def place(request, tmp_path):
    return f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"


def keys(name, count):
    return tuple(f"{name}{number:03d}" for number in range(count))


def urls(output, *names):
    return [embeddings_url(output.path, shard_id(name)) for name in names]


def sampled(output, *names, **options):
    kind = output.config.output.vectors
    return read_sample(output.storage, urls(output, *names), kind, WIDTH, **options)


def test_few_rows_are_all_there_with_their_vectors(place):
    output = Output(place)
    vectors = np.eye(WIDTH, dtype=np.float32)[:5]
    output.publish("a", keys("a", 5), vectors=vectors)
    output.publish("b", keys("b", 3))
    sample = sampled(output, "a", "b")
    assert sample.keys == [*keys("a", 5), *keys("b", 3)]
    assert sample.shards == [shard_id("a")] * 5 + [shard_id("b")] * 3
    np.testing.assert_array_equal(sample.vectors[:5], vectors)
    assert sample.sizes.tolist() == [[16, 16]] * 8
    assert sample.grids.tolist() == [[1, 1]] * 8


def test_many_rows_are_sampled_evenly(place):
    output = Output(place)
    output.publish("a", keys("a", 60))
    output.publish("b", keys("b", 20))
    sample = sampled(output, "a", "b", rows=8)
    assert sample.keys == ["a000", "a010", "a020", "a030", "a040", "a050", "b000", "b010"]
    assert sample.shards_read == 2


def test_no_more_than_so_many_bytes_are_read(place, monkeypatch):
    output = Output(place)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        output.publish(name, keys(name, 4))
    size = report_sample._groups(output.storage, urls(output, "s0")[0])[0].size
    monkeypatch.setattr(report_sample, "_READ_BYTES", 3 * size)
    sample = sampled(output, *names)
    assert set(sample.shards) == {shard_id(f"s{number}") for number in (0, 2, 4)}


def test_tokens_stand_by_their_mean(place):
    output = Output(place, output={"path": place, "vectors": "tokens", "dtype": "float32"})
    rng = np.random.default_rng(0)
    tokens = [rng.standard_normal((count, WIDTH)).astype(np.float32) for count in (6, 1, 12, 4)]
    rows = [
        {"key": f"k{i}", "shard": "s", "index": i, "tokens": values, "height": 16, "width": 16}
        | {"grid_h": 1, "grid_w": len(values)}
        for i, values in enumerate(tokens)
    ]
    buffer = io.BytesIO()
    pq.write_table(rows_table(rows, embeddings_schema(output.config, WIDTH)), buffer)
    output.storage.put(urls(output, "a")[0], buffer.getvalue())
    expected = np.stack([values.mean(axis=0) for values in tokens])
    np.testing.assert_allclose(sampled(output, "a").vectors, expected, rtol=1e-5)
    some = sampled(output, "a", rows=2)
    assert some.keys == ["k0", "k2"]
    np.testing.assert_allclose(some.vectors, expected[[0, 2]], rtol=1e-5)


def test_an_object_that_is_broken_or_gone_is_left_out(place):
    output = Output(place)
    output.publish("a", keys("a", 3))
    output.storage.put(urls(output, "b")[0], b"PAR1 it is not PAR1")
    sample = sampled(output, "a", "b", "gone")
    assert sample.rows == 3
    assert sampled(output, "b").vectors.shape == (0, WIDTH)


def test_examples_of_a_reason_come_from_several_shards(place):
    output = Output(place)
    having = {"decode_error": [], "empty_image": []}
    for name in ("a", "b"):
        rejects = {f"{name}{number}": "decode_error" for number in range(9)}
        attempt = output.publish(name, rejects=rejects | {f"{name}x": "empty_image"})
        for places in having.values():
            places.append((shard_id(name), attempt))
    examples = read_examples(output.storage, output.path, having)
    assert [line.key for line in examples["decode_error"]] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [line.member for line in examples["empty_image"]] == ["ax.jpg", "bx.jpg"]
    gone = {"decode_error": [(shard_id("a"), "0" * 32)]}
    assert read_examples(output.storage, output.path, gone) == {"decode_error": []}


def test_an_object_is_a_seekable_file(place):
    output = Output(place)
    url = f"{output.path}/some"
    output.storage.put(url, b"0123456789")
    with ObjectFile(output.storage, url) as file:
        assert file.read(3) == b"012"
        assert file.seek(-2, 2) == 8
        assert file.read() == b"89"
        assert file.read(5) == b""
        file.seek(4)
        assert file.seek(1, 1) == 5
        assert file.read(1) == b"5"
