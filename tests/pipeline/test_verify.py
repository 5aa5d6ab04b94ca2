"""Every way in which an output can be wrong is found, and told; a good one is found good."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ShardError
from pipeline.footer import FOOTER_KEY
from pipeline.manifest import embeddings_url, output_name, rejects_url
from pipeline.quarantine import describe_failure, write_failure
from pipeline.run_record import read_run
from pipeline.verify import _Picker, verify_output
from pipeline.verify_shard import ShardFacts
from tests.pipeline.outputs import WIDTH, Output, shard_id, unit_vectors

BAD = {"x": "decode_error", "y": "unknown_format"}


@pytest.fixture(params=["file", "memory"])
def place(request, tmp_path):
    return f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"


@pytest.fixture
def output(place):
    """A good output of three shards, one with rejects and one without rows."""
    output = Output(place, inputs=["a", "b", "empty"])
    output.publish("a", rejects=BAD)
    output.publish("b")
    output.publish("empty", keys=(), rejects={"z": "empty_image"})
    return output


def verified(output, *, inputs=("a", "b", "empty"), **options):
    record = read_run(output.storage, output.path)
    shards = None if inputs is None else [shard_id(name) for name in inputs]
    return verify_output(output.storage, output.path, record, shards, **options)[0]


def counts(output, **options):
    return dict(verified(output, **options).counts)


def rewrite(output, name, change=lambda table: table, **footer):
    """Puts a changed table and footer in the place of a shard's embeddings."""
    url = embeddings_url(output.path, shard_id(name))
    old = output.read(name)
    facts = json.loads(old.metadata.metadata[FOOTER_KEY]) | footer
    table = change(old.read())
    buffer = io.BytesIO()
    metadata = {FOOTER_KEY: json.dumps(facts).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), buffer)
    output.storage.put(url, buffer.getvalue())


def with_column(name, values):
    def change(table):
        place = table.schema.get_field_index(name)
        field = table.schema.field(name)
        return table.set_column(place, field, pa.array(values, type=field.type))

    return change


def with_vectors(vectors):
    def change(table):
        field = table.schema.field("embedding")
        flat = pa.array(np.asarray(vectors, dtype=np.float32).reshape(-1))
        array = pa.FixedSizeListArray.from_arrays(flat, type=field.type)
        return table.set_column(table.schema.get_field_index("embedding"), field, array)

    return change


def test_a_good_output_is_good(output):
    report = verified(output)
    assert report.ok, report.findings
    assert (report.shards, report.inputs, report.rows, report.read) == (3, 3, 6, 9)
    assert report.rejected == {"decode_error": 1, "unknown_format": 1, "empty_image": 1}
    assert (report.empty_shards, report.incomplete_shards) == (1, 0)
    assert report.notes == []


def test_a_row_that_is_lost_is_found(output):
    rewrite(output, "b", lambda table: table.slice(1))
    assert counts(output) == {"counts": 2}  # the footer's number, and the sample


def test_a_row_that_is_lost_with_its_count_is_found(output):
    rewrite(output, "b", lambda table: table.slice(1), embedded=2, read=2)
    report = verified(output)
    assert dict(report.counts) == {"counts": 1}
    assert "not samples 0 to 1" in report.findings[0].detail


def test_footers_that_do_not_add_up_are_found(output):
    rewrite(output, "b", read=4)
    assert counts(output) == {"counts": 2}


def test_rejects_that_are_lost_are_found(output):
    footer = json.loads(output.read("a").metadata.metadata[FOOTER_KEY])
    output.storage.delete(rejects_url(output.path, shard_id("a"), footer["attempt"]))
    assert counts(output) == {"rejects": 1, "counts": 1}


def test_rejects_of_other_reasons_than_the_footer_says_are_found(output):
    rewrite(output, "a", rejected={"decode_error": 2})
    assert counts(output) == {"counts": 1}


def test_rejects_of_a_lost_attempt_are_found_and_of_an_open_shard_only_noted(output):
    killed = output.leave_rejects("b", BAD)
    report = verified(output)
    assert dict(report.counts) == {"rejects": 1}
    assert killed in report.findings[0].subject
    output.storage.delete(embeddings_url(output.path, shard_id("b")))
    report = verified(output)
    assert dict(report.counts) == {"missing": 1}
    assert report.notes == ["1 rejects objects of shards without a readable output"]


def test_missing_and_surplus_shards_are_found(output):
    report = verified(output, inputs=["a", "c", "empty"])
    found = {(finding.check, finding.subject) for finding in report.findings}
    assert found == {("missing", shard_id("c")), ("surplus", shard_id("b"))}
    unknown = verified(output, inputs=None)
    assert unknown.ok
    assert "missing" not in unknown.checked


def test_a_key_that_comes_twice_is_found(output):
    rewrite(output, "b", with_column("key", ["k0", "k1", "k0"]))
    report = verified(output)
    assert dict(report.counts) == {"duplicates": 1}
    assert "'k0'" in report.findings[0].detail


def test_rows_out_of_order_or_of_another_shard_are_found(output):
    rewrite(output, "b", with_column("index", [1, 0, 2]))
    rewrite(output, "a", with_column("shard", [shard_id("a"), shard_id("b"), shard_id("a")]))
    assert counts(output) == {"rows": 2}


def test_a_copy_of_a_shard_under_another_name_is_found(output):
    copy = output.storage.read(embeddings_url(output.path, shard_id("a")))
    output.storage.put(embeddings_url(output.path, shard_id("c")), copy)
    assert counts(output) == {"footer": 1, "surplus": 1}
    assert counts(output, inputs=None) == {"footer": 1}


@pytest.mark.parametrize("field", ["fingerprint", "digest", "revision", "kernel"])
def test_a_shard_of_another_run_is_found(output, field):
    rewrite(output, "b", **{field: "other"})
    report = verified(output)
    assert dict(report.counts) == {"footer": 1}
    assert f"{field} is 'other'" in report.findings[0].detail


def test_columns_that_differ_are_named(output):
    rewrite(output, "b", lambda table: table.drop_columns(["grid_h"]))
    rewrite(output, "empty", lambda table: table.append_column("more", pa.array([], pa.int8())))
    report = verified(output)
    assert dict(report.counts) == {"schema": 2}
    details = {finding.detail for finding in report.findings}
    assert "grid_h: missing, not pyarrow.Field<grid_h: int32 not null>" in details
    assert "more: pyarrow.Field<more: int8>, not there" in details


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found(output, value):
    vectors = unit_vectors(3)
    vectors[1, 2] = value
    rewrite(output, "b", with_vectors(vectors))
    (finding,) = verified(output).findings
    assert finding.check == "vectors"
    assert finding.detail == "1 vectors have values that are not finite"


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-4), ("float16", 4e-3)])
def test_vectors_of_another_length_are_found_where_the_run_normalizes(place, dtype, off):
    for normalize in (True, False):
        settings = {"path": f"{place}/{normalize}", "dtype": dtype, "normalize": normalize}
        output = Output(settings["path"], inputs=["a", "b"], output=settings)
        output.publish("a", vectors=unit_vectors(3) * (1 + off))
        output.publish("b")
        assert counts(output, inputs=["a", "b"]) == ({"vectors": 1} if normalize else {})


def test_a_damaged_object_is_found_and_does_not_hide_the_others(output):
    data = output.storage.read(embeddings_url(output.path, shard_id("a")))
    output.storage.put(embeddings_url(output.path, shard_id("a")), data[: len(data) // 2])
    output.storage.put(embeddings_url(output.path, shard_id("b")), b"")
    report = verified(output)
    assert dict(report.counts) == {"readable": 2}
    assert report.rows == 0
    assert report.shards == 3


def test_damage_within_the_rows_is_found(output):
    url = embeddings_url(output.path, shard_id("a"))
    data = bytearray(output.storage.read(url))
    start = output.read("a").metadata.row_group(0).column(3).data_page_offset
    data[start + 40 : start + 80] = bytes(40)
    output.storage.put(url, bytes(data))
    assert counts(output).keys() <= {"readable", "vectors"}
    assert not verified(output).ok


def test_rows_that_cannot_be_read_are_not_drawn(output):
    url = embeddings_url(output.path, shard_id("a"))
    data = bytearray(output.storage.read(url))
    start = output.read("a").metadata.row_group(0).column(0).data_page_offset
    data[start : start + 40] = b"\xff" * 40
    output.storage.put(url, bytes(data))
    rewrite(output, "b", lambda table: table.drop_columns(["key"]))
    record = read_run(output.storage, output.path)
    report, picked = verify_output(output.storage, output.path, record, None, sample=9)
    assert dict(report.counts) == {"readable": 1, "schema": 1}
    assert picked == {}


def test_a_shard_that_was_given_up_is_told_with_its_cause(output):
    failure = describe_failure(shard_id("c"), ShardError("the tar ends early"), 3)
    write_failure(output.storage, output.path, failure)
    write_failure(output.storage, output.path, describe_failure(shard_id("a"), ShardError("x"), 3))
    report = verified(output, inputs=["a", "b", "c", "empty"])
    assert dict(report.counts) == {"failed": 1, "missing": 1}
    (detail,) = [finding.detail for finding in report.findings if finding.check == "failed"]
    assert "after 3 attempts: the tar ends early" in detail
    assert report.notes == ["1 failures of shards that have their output; see clean"]


def test_foreign_objects_among_the_embeddings_are_found(output):
    names = ["extra.parquet", f"sub/{output_name(shard_id('c'))}.parquet", "notes.txt"]
    for name in names:
        output.storage.put(f"{output.path}/embeddings/{name}", b"")
    assert counts(output) == {"foreign": 3}


def test_half_written_files_are_noted(tmp_path):
    output = Output(f"file://{tmp_path}/out", inputs=["a"])
    output.publish("a")
    (tmp_path / "out" / "embeddings" / f".{'0' * 32}.embedmill-tmp").write_bytes(b"half")
    report = verified(output, inputs=["a"])
    assert report.ok
    assert report.notes == ["1 half-written files; embedmill clean removes old ones"]


def test_incomplete_shards_are_counted(place):
    output = Output(place, inputs=["a"])
    output.publish("a", complete=False)
    assert verified(output, inputs=["a"]).incomplete_shards == 1


def test_a_record_that_was_edited_is_found(output):
    url = f"{output.path}/_run.json"
    stored = json.loads(output.storage.read(url))
    stored["fields"]["preprocess.background"] = "black"
    output.storage.put(url, json.dumps(stored).encode())
    assert counts(output) == {"run": 1}


def test_tokens_that_do_not_fit_their_grid_are_found(place):
    settings = {"path": place, "vectors": "tokens", "dtype": "float32"}
    output = Output(place, inputs=["a", "b"], output=settings)
    output.publish("a")
    output.publish("b")
    assert verified(output, inputs=["a", "b"]).ok
    rewrite(output, "b", with_column("grid_w", [1, 2, 1]))
    assert counts(output, inputs=["a", "b"]) == {"vectors": 1}


def test_findings_beyond_a_hundred_are_counted_only(place):
    output = Output(place)
    report = verified(output, inputs=[f"{number:03d}" for number in range(130)])
    assert dict(report.counts) == {"missing": 130}
    assert len(report.findings) == 100


def test_every_row_is_drawn_with_the_same_chance():
    hits = np.zeros(30)
    for _ in range(2000):
        picker = _Picker(3)
        for name, rows in (("u", 5), ("v", 0), ("w", 25)):
            picker.offer(ShardFacts(url=name, rows=rows))
        picked = picker.picked()
        assert sum(map(len, picked.values())) == 3
        for row in picked.get("u", []):
            hits[row] += 1
        for row in picked.get("w", []):
            hits[5 + row] += 1
    assert abs(hits - 200).max() < 75  # five standard deviations


def test_the_width_of_the_record_is_that_of_the_schema(output):
    assert read_run(output.storage, output.path).model.readout.width == WIDTH
