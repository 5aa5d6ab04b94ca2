"""The stage as a plain loop: the same functions as on Ray, without it."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from encoder.infer import load_encoder
from encoder.output import Output
from encoder.seeded import write_seeded_checkpoint
from pipeline.config_file import load_config
from pipeline.errors import ConfigError, InvariantError, OutputError
from pipeline.manifest import open_run
from pipeline.records import Pack
from pipeline.stage import (
    encode_pack,
    image_preparer,
    prepare_shard,
    run_plain,
    shard_writer,
    wanted_output,
)
from pipeline.storage import Storage
from pipeline.work import prepare_work
from pipeline.writer import Lease
from tests.integration.conftest import footer, read_rejects, read_rows, write_shard


def run(config_path):
    """The work that was found and the results of doing it in this process."""
    config = load_config(config_path)
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    open_run(storage, work.plan.output, config, work.plan.model, work.plan.fingerprint)
    encoder = load_encoder(
        config.model.checkpoint, device="cpu", output=wanted_output(config.output)
    )
    leases = [Lease(url=url) for url in work.pending]
    return work, list(run_plain(leases, work.plan, storage, encoder))


@pytest.fixture
def two_shards(tmp_path, photos):
    names = list(photos)
    bad = {"broken.jpg": b'{"not": "an image"}'}
    write_shard(tmp_path / "shards" / "a.tar", {n: photos[n] for n in names[:5]} | bad)
    write_shard(tmp_path / "shards" / "b.tar", {n: photos[n] for n in names[5:10]})


def test_every_image_is_a_row_or_a_reject(two_shards, write_config, tmp_path):
    _, results = run(write_config())
    rows, rejects = read_rows(tmp_path / "out"), read_rejects(tmp_path / "out")
    assert len(rows) == 10
    assert [(r["key"], r["reason"], r["index"]) for r in rejects] == [
        ("broken", "unknown_format", 5)
    ]
    assert sum(result.report.read for result in results) == 11
    assert all(result.report.balanced for result in results)


def test_rows_are_in_tar_order_with_unit_vectors(two_shards, write_config, tmp_path, photos):
    run(write_config(packing={"token_budget": 700, "look_ahead": 3}))
    rows = read_rows(tmp_path / "out")
    assert [row["key"] for row in rows] == [name.split(".")[0] for name in list(photos)[:10]]
    norms = [np.linalg.norm(row["embedding"]) for row in rows]
    np.testing.assert_allclose(norms, 1, atol=1e-6)


def test_a_second_run_finds_nothing_to_do(two_shards, write_config):
    run(write_config())
    work, results = run(write_config())
    assert (work.total, work.pending, results) == (2, [], [])


def test_a_run_continues_with_what_is_missing(two_shards, write_config, tmp_path):
    run(write_config())
    (removed,) = (tmp_path / "out" / "embeddings").glob("a-*.parquet")
    removed.unlink()
    work, _ = run(write_config())
    assert [shard.rsplit("/", 1)[1] for shard in work.pending] == ["a.tar"]
    assert len(read_rows(tmp_path / "out")) == 10


def test_the_footer_accounts_for_the_shard(two_shards, write_config, tmp_path):
    work, _ = run(write_config())
    (path,) = (tmp_path / "out" / "embeddings").glob("a-*.parquet")
    facts = footer(path)
    assert (facts["read"], facts["embedded"], facts["rejected"]) == (6, 5, {"unknown_format": 1})
    assert facts["size"] == (tmp_path / "shards" / "a.tar").stat().st_size
    assert facts["fingerprint"] == work.plan.fingerprint.sha
    assert facts["shard"].endswith("/shards/a.tar")


def test_the_footer_says_when_how_long_and_how_full(two_shards, write_config, tmp_path):
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    run(write_config(packing={"token_budget": 600}))
    (path,) = (tmp_path / "out" / "embeddings").glob("a-*.parquet")
    facts = footer(path)
    assert facts["tokens"] == sum(
        row["grid_h"] * row["grid_w"]
        for row in read_rows(tmp_path / "out")
        if row["shard"] == facts["shard"]
    )
    assert facts["token_budget"] == 600
    assert facts["passes"] == 3  # 5 images of at most 256 tokens, two in a pass
    seconds = facts["seconds"]
    assert set(seconds) == {"read", "prepare", "pack", "blocked", "encode", "write"}
    assert seconds["prepare"] > 0 < seconds["encode"]
    started, finished = map(datetime.fromisoformat, (facts["started"], facts["finished"]))
    assert before < started < finished < datetime.now(UTC)
    assert seconds["prepare"] + seconds["encode"] <= (finished - started).total_seconds()


def test_another_fingerprint_is_refused_with_the_differing_fields(two_shards, write_config):
    run(write_config())
    with pytest.raises(OutputError) as caught:
        run(write_config(preprocess={"max_num_patches": 64}))
    assert "preprocess.max_num_patches: 256 there, 64 now" in str(caught.value)


def test_packing_and_workers_do_not_change_the_fingerprint(two_shards, write_config):
    first, _ = run(write_config())
    changed = write_config(packing={"token_budget": 1000}, limits={"shard_attempts": 1})
    again, _ = run(changed)
    assert again.plan.fingerprint.sha == first.plan.fingerprint.sha


def test_a_shard_with_nothing_to_embed_still_gets_its_file(write_config, tmp_path):
    write_shard(tmp_path / "shards" / "empty.tar", {})
    run(write_config())
    (path,) = (tmp_path / "out" / "embeddings").glob("empty-*.parquet")
    assert footer(path)["read"] == 0
    assert read_rows(tmp_path / "out") == []


def test_the_loser_of_two_attempts_removes_its_rejects(two_shards, write_config, tmp_path):
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    encoder = load_encoder(config.model.checkpoint, device="cpu")
    leases = [Lease(url=work.pending[0]) for _ in range(2)]
    first, second = run_plain(leases, work.plan, storage, encoder)
    assert (first.outcome, second.outcome) == ("published", "lost")
    (rejects,) = (tmp_path / "out" / "rejects").iterdir()
    assert leases[0].attempt in rejects.name


def test_a_put_whose_answer_was_lost_is_recognised(two_shards, write_config, monkeypatch):
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    encoder = load_encoder(config.model.checkpoint, device="cpu")
    create = Storage.create

    def create_and_forget(self, url, source):
        create(self, url, source)
        return False  # what a retry sees whose first try had succeeded

    monkeypatch.setattr(Storage, "create", create_and_forget)
    leases = [Lease(url=work.pending[0])]
    (result,) = run_plain(leases, work.plan, storage, encoder)
    assert result.outcome == "already_ours"


def test_vectors_that_are_not_finite_become_rejections(two_shards, write_config, tmp_path):
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)

    def encode(batch):
        vectors = np.ones((batch.num_images, work.plan.model.readout.width), dtype=np.float32)
        vectors[[sample.key == "anemones" for sample in batch.ids]] = np.nan
        return vectors

    leases = [Lease(url=url) for url in work.pending]
    results = list(run_plain(leases, work.plan, storage, encode))
    reasons = {reject["key"]: reject["reason"] for reject in read_rejects(tmp_path / "out")}
    assert reasons == {"anemones": "non_finite", "broken": "unknown_format"}
    assert all(result.report.balanced for result in results)
    assert len(read_rows(tmp_path / "out")) == 9


def test_a_rejection_names_the_first_layer_that_is_not_finite(two_shards, write_config, tmp_path):
    folder = write_seeded_checkpoint(tmp_path / "spoiled", num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layers.1.mlp.fc2.bias"][3] = np.nan
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model.safetensors")
    config = load_config(write_config(model={"checkpoint": str(folder)}))
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    encoder = load_encoder(folder, device="cpu")
    leases = [Lease(url=url) for url in work.pending]
    results = list(run_plain(leases, work.plan, storage, encoder, encoder.explain))
    assert all(result.report.balanced for result in results)
    details = Counter(reject["detail"] for reject in read_rejects(tmp_path / "out"))
    named = (
        "the encoder's values for this image are not finite in float32, first after blocks.1.mlp"
    )
    assert details[f"{named}.fc2"] == 10


def test_a_sample_that_comes_twice_stops_the_run(two_shards, write_config):
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    lease = Lease(url=work.pending[0])
    items = list(prepare_shard(lease.url, work.plan, storage, image_preparer(work.plan)))
    pack = next(item for item in items if isinstance(item, Pack))
    block = encode_pack(pack, lambda batch: np.ones((batch.num_images, 192), np.float32), work.plan)
    with shard_writer(lease, work.plan, storage, "test") as writer:
        writer.add(pack, block)
        with pytest.raises(InvariantError, match="came twice"):
            writer.add(pack, block)


def test_a_shard_that_lost_a_row_is_never_published(two_shards, write_config, tmp_path):
    config = load_config(write_config())
    storage = Storage(config.storage)
    work = prepare_work(config, storage)
    lease = Lease(url=work.pending[0])
    *_, end = prepare_shard(lease.url, work.plan, storage, image_preparer(work.plan))
    writer = shard_writer(lease, work.plan, storage, "test")
    with writer, pytest.raises(InvariantError, match="read = embedded \\+ rejected"):
        writer.publish(end)
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_run_file_records_configuration_and_versions(two_shards, write_config, tmp_path):
    run(write_config())
    record = json.loads((tmp_path / "out" / "_run.json").read_text())
    assert record["fields"]["preprocess.max_num_patches"] == 256
    assert record["fields"]["preprocess.resize_kernel"] in ("torch", "pillow")
    assert record["versions"].keys() >= {"embedmill", "torch", "ray"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tokens_are_lists_that_the_grid_unflattens(two_shards, write_config, tmp_path, dtype):
    layers = {"vectors": "tokens", "layers": [-2, -1], "dtype": dtype}
    _, results = run(write_config(output={"path": str(tmp_path / "out"), **layers}))
    assert all(result.report.balanced for result in results)
    for path in sorted((tmp_path / "out" / "embeddings").glob("*.parquet")):
        table = pq.read_table(path)
        kind = table.schema.field("tokens").type
        assert (kind.value_type.list_size, str(kind.value_type.value_type)) == (
            384,
            {"float16": "halffloat", "float32": "float"}[dtype],
        )
        assert not table.schema.field("tokens").nullable
        assert "embedding" not in table.column_names
    rows = read_rows(tmp_path / "out")
    assert len(rows) == 10
    for row in rows:
        tokens = np.array(row["tokens"]).reshape(row["grid_h"], row["grid_w"], 384)
        assert np.isfinite(tokens).all()
        assert len({tuple(token[:3]) for token in tokens.reshape(-1, 384)}) > 1


def test_tokens_of_a_run_are_those_of_each_image_alone(
    two_shards, write_config, tmp_path, checkpoint
):
    output = {"path": str(tmp_path / "out"), "dtype": "float32", "vectors": "tokens"}
    work, _ = run(write_config(output=output, packing={"token_budget": 600}))
    rows = {row["key"]: row["tokens"] for row in read_rows(tmp_path / "out")}
    alone = load_encoder(checkpoint, device="cpu", output=Output(vectors="tokens"))
    storage = Storage(work.plan.config.storage)
    for url in work.pending:
        for item in prepare_shard(url, work.plan, storage, image_preparer(work.plan)):
            if isinstance(item, Pack):
                ends = item.batch.cu_seqlens[1:-1]
                for sample, tokens in zip(
                    item.batch.ids, np.split(alone(item.batch), ends), strict=True
                ):
                    found = np.array(rows.pop(sample.key))
                    assert np.abs(found - tokens).max() <= 2e-6 * np.abs(tokens).max()
    assert not rows


def test_means_are_vectors_like_pooled_ones(two_shards, write_config, tmp_path):
    output = {"path": str(tmp_path / "out"), "dtype": "float32", "vectors": "mean"}
    work, _ = run(write_config(output=output))
    rows = read_rows(tmp_path / "out")
    np.testing.assert_allclose([np.linalg.norm(r["embedding"]) for r in rows], 1, atol=1e-6)
    assert work.plan.fingerprint.fields["output.vectors"] == "mean"


def test_outputs_of_two_kinds_do_not_mix(two_shards, write_config, tmp_path):
    run(write_config())
    path = {"path": str(tmp_path / "out"), "dtype": "float32"}
    for change, said in [
        ({"vectors": "mean"}, "output.vectors: 'pooled' there, 'mean' now"),
        ({"vectors": "mean", "layers": [2, 3]}, "output.layers: [4] there, [2, 3] now"),
        ({"vectors": "mean", "final_norm": False}, "output.final_norm: True there, False now"),
        ({"vectors": "tokens"}, "output.normalize: True there, False now"),
    ]:
        with pytest.raises(OutputError) as caught:
            run(write_config(output=path | change))
        assert said in str(caught.value)


def test_values_that_float16_cannot_hold_are_rejections(two_shards, write_config, tmp_path):
    config = load_config(write_config(output={"path": str(tmp_path / "out"), "dtype": "float16"}))
    storage = Storage(config.storage)
    work = prepare_work(config, storage)

    def encode(batch):
        vectors = np.ones((batch.num_images, work.plan.model.readout.width), dtype=np.float32)
        vectors[[sample.key == "anemones" for sample in batch.ids], 5] = 65_536
        return vectors

    list(run_plain([Lease(url=url) for url in work.pending], work.plan, storage, encode))
    reasons = {reject["key"]: reject["reason"] for reject in read_rejects(tmp_path / "out")}
    assert reasons == {"anemones": "non_finite", "broken": "unknown_format"}


@pytest.fixture
def fixed_checkpoint(tmp_path):
    return write_seeded_checkpoint(tmp_path / "fixed", image_size=70, patch_size=16)


def test_a_fixed_resolution_checkpoint_makes_squares_of_every_photo(
    two_shards, write_config, tmp_path, fixed_checkpoint
):
    work, _ = run(write_config(model={"checkpoint": str(fixed_checkpoint)}))
    rows = read_rows(tmp_path / "out")
    assert {(row["grid_h"], row["grid_w"]) for row in rows} == {(4, 4)}
    assert len({(row["height"], row["width"]) for row in rows}) > 1
    fields = work.plan.fingerprint.fields
    assert (fields["preprocess.square"], fields["preprocess.max_num_patches"]) == (70, 16)


def test_patches_given_against_a_fixed_resolution_are_refused_with_both(
    two_shards, write_config, fixed_checkpoint
):
    path = write_config(
        model={"checkpoint": str(fixed_checkpoint)}, preprocess={"max_num_patches": 256}
    )
    with pytest.raises(ConfigError) as caught:
        run(path)
    assert "max_num_patches is 256, but " in str(caught.value)
    assert "preprocessor_config.json says that images are resized to 70 x 70 px" in str(
        caught.value
    )


def test_a_pack_that_cannot_hold_an_image_of_the_checkpoint_is_refused(two_shards, write_config):
    with pytest.raises(ConfigError, match=r"must hold an image of 256 patches, as .*, got 100"):
        run(write_config(packing={"token_budget": 100}))


def test_token_rows_go_to_disk_by_bytes_not_by_the_thousand(
    two_shards, write_config, tmp_path, monkeypatch
):
    """5 photos of about 250 tokens are 0.2 MB each in float32: two fill a group of 0.3 MB."""
    monkeypatch.setattr("pipeline.writer._ROW_GROUP_BYTES", 300_000)
    output = {"path": str(tmp_path / "out"), "dtype": "float32", "vectors": "tokens"}
    run(write_config(output=output, packing={"token_budget": 300}))
    for path in (tmp_path / "out" / "embeddings").glob("*.parquet"):
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert groups == [2, 2, 1]
