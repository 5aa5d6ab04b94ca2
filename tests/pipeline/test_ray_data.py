"""The halves of the stage on tables, and in a real Ray Data pipeline."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from encoder.batch import PackMismatchError
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint
from pipeline.ray_data import EncodeImages, PrepareImages

REPOSITORY = Path(__file__).parents[2]
PHOTOS = REPOSITORY / "pipeline" / "demo_photos"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(
        write_seeded_checkpoint(
            tmp_path_factory.mktemp("model"), hidden_size=64, num_attention_heads=1
        )
    )


@pytest.fixture(scope="module")
def files():
    paths = sorted(path for path in PHOTOS.iterdir() if path.suffix == ".jpg")[:4]
    return pa.table({"name": [p.name for p in paths], "bytes": [p.read_bytes() for p in paths]})


def alone(encode, table, row):
    """The vector of one row in a batch of its own."""
    return np.array(encode(table.slice(row, 1)).column("embedding")[0].as_py())


def test_vectors_are_those_of_each_image_alone(checkpoint, files):
    encode = EncodeImages(checkpoint, device="cpu", token_budget=512)  # two images in a pack
    prepared = PrepareImages(checkpoint)(files)
    encoded = encode(prepared)
    assert encoded.column("name").equals(files.column("name"))
    assert set(encoded.column_names) == {
        *("name", "embedding", "height", "width", "grid_h", "grid_w"),
        *("reject_reason", "reject_detail"),
    }
    vectors = np.array(encoded.column("embedding").to_pylist())
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    for row in range(len(files)):
        assert vectors[row] == pytest.approx(alone(encode, prepared, row), abs=2e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2


def test_rejected_images_keep_their_rows(checkpoint, files):
    table = files.set_column(
        1, "bytes", pa.array([None, b"GIF89a", *files["bytes"][2:].to_pylist()])
    )
    encoded = EncodeImages(checkpoint, device="cpu")(PrepareImages(checkpoint)(table))
    reasons = encoded.column("reject_reason").to_pylist()
    assert reasons[0] == "no_image"
    assert reasons[1] in {"truncated_image", "decode_error"}
    assert reasons[2:] == [None, None]
    assert [v is None for v in encoded.column("embedding").to_pylist()] == [
        True,
        True,
        False,
        False,
    ]


def test_a_batch_of_rejected_images_has_the_same_columns(checkpoint, files):
    prepare, encode = PrepareImages(checkpoint), EncodeImages(checkpoint, device="cpu")
    bad = files.slice(0, 1).set_column(1, "bytes", pa.array([b"no image"]))
    assert encode(prepare(bad)).schema == encode(prepare(files)).schema


def test_images_that_are_not_finite_are_rejected(checkpoint, files, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "loud")
    weights = tmp_path / "loud" / "model.safetensors"
    tensors = load_file(weights)
    tensors["head.mlp.fc2.bias"] += 1e5  # float16 ends at 65504
    save_file(tensors, weights, metadata={"format": "pt"})
    output = Output(normalize=False, dtype="float16")
    encode = EncodeImages(str(tmp_path / "loud"), device="cpu", output=output)
    encoded = encode(PrepareImages(checkpoint)(files))
    assert encoded.column("reject_reason").to_pylist() == ["non_finite"] * 4
    assert all("65504" in detail for detail in encoded.column("reject_detail").to_pylist())
    assert encoded.column("embedding").null_count == 4


def test_tokens_come_with_their_grids(checkpoint, files):
    output = Output(vectors="tokens", normalize=False, dtype="float16")
    encoded = EncodeImages(checkpoint, device="cpu", output=output)(
        PrepareImages(checkpoint)(files)
    )
    for row in encoded.to_pylist():
        assert np.array(row["tokens"]).shape == (row["grid_h"] * row["grid_w"], 64)
    assert encoded.schema.field("tokens").type == pa.list_(pa.list_(pa.float16(), 64))


def test_what_is_wrong_is_named(checkpoint, files):
    prepare, encode = PrepareImages(checkpoint), EncodeImages(checkpoint, device="cpu")
    with pytest.raises(ValueError, match=r"'bytes' must hold the images, found \['name'\]"):
        prepare(files.select(["name"]))
    with pytest.raises(ValueError, match=r"\['height'\] are written here"):
        prepare(files.append_column("height", pa.array([1] * 4)))
    prepared = prepare(files)
    wrong = pa.array([n + 1 for n in prepared["grid_w"].to_pylist()], pa.int32())
    with pytest.raises(PackMismatchError, match=r"= \d+ bytes in row 0 of the batch, found \d+"):
        encode(prepared.set_column(prepared.column_names.index("grid_w"), "grid_w", wrong))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pipeline_of_the_how_to_gives_the_same_vectors(checkpoint, files, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoint")
    (tmp_path / "photos").mkdir()
    for name, data in zip(*files.to_pydict().values(), strict=True):
        (tmp_path / "photos" / name).write_bytes(data)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    page = (REPOSITORY / "docs" / "howto" / "ray-data.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    start = "import ray\nray.init(num_cpus=4, object_store_memory=200 << 20)\n"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", start + code]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=280)
    rows = pq.read_table(tmp_path / "vectors").to_pylist()
    found = {Path(row["path"]).name: row for row in rows}
    expected = EncodeImages(checkpoint, device="cpu")(PrepareImages(checkpoint)(files)).to_pylist()
    assert found.keys() == {*files.column("name").to_pylist(), "broken.jpg"}
    for row in expected:
        assert found[row["name"]]["embedding"] == pytest.approx(row["embedding"], abs=2e-6)
    assert found["broken.jpg"]["reject_reason"] == "unknown_format"
    assert found["broken.jpg"]["embedding"] is None
