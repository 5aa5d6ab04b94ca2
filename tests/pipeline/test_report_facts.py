"""The facts of a report are those of the footers, whatever state an output is in."""

import io
import json

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ShardError
from pipeline.footer import FOOTER_KEY
from pipeline.manifest import embeddings_url
from pipeline.quarantine import describe_failure, write_failure
from pipeline.report_facts import SAMPLED_SHARDS, gather_facts
from pipeline.run_record import read_run
from tests.pipeline.outputs import Output, shard_id


@pytest.fixture(params=["file", "memory"])
def output(request, tmp_path):
    place = f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"
    return Output(place, inputs=["a", "b"])


def gathered(output):
    return gather_facts(output.storage, output.path, read_run(output.storage, output.path))


def set_footer(output, name, **fields):
    """Changes fields of a shard's footer; those given as None go."""
    old = output.read(name)
    footer = json.loads(old.metadata.metadata[FOOTER_KEY]) | fields
    footer = {key: value for key, value in footer.items() if value is not None}
    buffer = io.BytesIO()
    table = old.read().replace_schema_metadata({FOOTER_KEY: json.dumps(footer).encode()})
    pq.write_table(table, buffer)
    output.storage.put(embeddings_url(output.path, shard_id(name)), buffer.getvalue())


def test_an_empty_output_has_no_facts(output):
    facts = gathered(output)
    assert (facts.shards, facts.read, facts.failed_shards) == (0, 0, 0)
    assert facts.fill is None
    assert facts.most_rejected.lines == []


def test_counts_are_sums_over_the_footers(output):
    output.publish("a", rejects={"x": "decode_error", "y": "unknown_format"})
    output.publish("b")
    output.publish("empty", keys=(), rejects={"z": "decode_error"}, complete=False)
    facts = gathered(output)
    assert (facts.shards, facts.read, facts.embedded) == (3, 9, 6)
    assert facts.rejected == {"decode_error": 2, "unknown_format": 1}
    assert facts.read == facts.embedded + facts.rejected.total()
    assert (facts.empty_shards, facts.incomplete_shards) == (1, 1)
    assert facts.input_bytes == 3000
    assert facts.output_bytes > 0
    worst = facts.most_rejected.lines
    assert [line.shard for line in worst] == [shard_id("empty"), shard_id("a")]
    assert [line.shard for line in facts.incomplete.lines] == [shard_id("empty")]
    assert {reason: len(places) for reason, places in facts.having.items()} == {
        "decode_error": 2,
        "unknown_format": 1,
    }


def test_times_and_fill_are_those_of_the_footers(output):
    for name, minute, passes in (("a", 1, 4), ("b", 2, 1)):
        output.publish(name)
        set_footer(
            output,
            name,
            started=f"2026-01-01T00:0{minute}:00.000+00:00",
            finished=f"2026-01-01T00:0{minute}:30.000+00:00",
            seconds={"encode": 2.0, "read": 0.5},
            tokens=100,
            passes=passes,
            token_budget=100,
        )
    facts = gathered(output)
    assert facts.fill == pytest.approx(200 / 500)
    assert sorted(facts.fills) == [0.25, 1.0]
    assert facts.seconds == {"encode": 4.0, "read": 1.0}
    assert sorted(facts.finished)[0] - sorted(facts.started)[0] == 30
    assert facts.emptiest.lines[0].shard == shard_id("a")
    assert facts.slowest.lines[0].rate == pytest.approx(3 / 30)


def test_footers_of_earlier_versions_do(output):
    output.publish("a")
    gone = ("tokens", "passes", "started", "finished", "seconds", "versions", "skipped", "warnings")
    set_footer(output, "a", **dict.fromkeys(gone))
    facts = gathered(output)
    assert (facts.shards, facts.embedded, len(facts.started)) == (1, 3, 0)
    assert facts.fill is None


def test_what_is_no_output_is_counted_and_told(output):
    output.publish("a")
    output.publish("b")
    set_footer(output, "b", embedded=None)
    output.storage.put(embeddings_url(output.path, shard_id("c")), b"not Parquet")
    facts = gathered(output)
    assert (facts.shards, facts.unreadable_shards) == (1, 2)
    assert any("lacks embedded" in text for text in facts.unreadable)


def test_given_up_shards_are_those_without_an_output(output):
    output.publish("a")
    for name in ("a", "b"):
        failure = describe_failure(shard_id(name), ShardError("cut", shard_id(name)), 3)
        write_failure(output.storage, output.path, failure)
    facts = gathered(output)
    assert facts.failed_shards == 1
    assert [failure.shard for failure in facts.failed] == [shard_id("b")]


def test_of_many_shards_some_are_drawn_and_all_are_counted(output):
    count = SAMPLED_SHARDS + 10
    for number in range(count):
        output.publish(f"s{number}", keys=(f"k{number}",))
    output.publish("none", keys=())
    facts = gathered(output)
    assert facts.shards == count + 1
    assert facts.with_rows == count
    assert len(set(facts.sampled)) == SAMPLED_SHARDS
    listed = [info.url for info in output.storage.list(f"{output.path}/embeddings")]
    assert set(facts.sampled) & set(listed[SAMPLED_SHARDS + 1 :])  # not just the first
    assert len(facts.slowest.lines) == 8
