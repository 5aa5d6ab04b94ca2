"""What may be removed, and above all what may not."""

import os
import tempfile

import pytest

from pipeline.clean import (
    SETTLED_S,
    freed,
    leftovers,
    removals,
    remove,
    remove_stale_rejects,
    stale_rejects,
    with_reasons,
)
from pipeline.errors import ConfigError, ShardError
from pipeline.manifest import output_name
from pipeline.quarantine import describe_failure, write_failure
from tests.pipeline.outputs import Output, shard_id

BAD = {"bad": "unknown_format"}


@pytest.fixture(params=["file", "memory"])
def output(request, tmp_path):
    place = f"file://{tmp_path}/out" if request.param == "file" else f"memory:///{tmp_path.name}"
    return Output(place)


def removed(removals, output):
    """The URLs, relative to the folder, after their removal in the order of their coming."""
    urls = []
    for removal in removals:
        output.storage.delete(removal.url)
        urls.append(removal.url.removeprefix(f"{output.path}/"))
    return urls


def give_up(output, name):
    failure = describe_failure(shard_id(name), ShardError("cut"), 3)
    write_failure(output.storage, output.path, failure)


def embeddings(name):
    return f"embeddings/{output_name(shard_id(name))}.parquet"


def rejects(name, attempt):
    return f"rejects/{output_name(shard_id(name))}.{attempt}.parquet"


def test_a_clean_folder_stays_as_it_is(output):
    output.publish("a", rejects=BAD)
    output.publish("empty", keys=())
    before = output.urls()
    assert removed(leftovers(output.storage, output.path), output) == []
    assert output.urls() == before


def test_rejects_of_a_lost_attempt_go_once_the_embeddings_are_there(output):
    killed = output.leave_rejects("a", BAD)
    assert removed(leftovers(output.storage, output.path), output) == []  # it may still be alive
    committed = output.publish("a", rejects=BAD)
    assert removed(leftovers(output.storage, output.path), output) == [rejects("a", killed)]
    assert output.urls() == {embeddings("a"), rejects("a", committed)}


def test_rejects_of_a_lost_attempt_go_where_the_committed_one_rejected_nothing(output):
    killed = output.leave_rejects("a", BAD)
    output.publish("a")
    assert removed(leftovers(output.storage, output.path), output) == [rejects("a", killed)]


def test_the_end_of_a_run_finds_stale_rejects_without_reading_every_footer(output, monkeypatch):
    for number in range(20):
        output.publish(f"calm{number}", rejects=BAD)
    twice = output.leave_rejects("twice", BAD)
    output.publish("twice", rejects=BAD)
    known = output.leave_rejects("known", BAD)
    output.publish("known")
    unknown = output.leave_rejects("unknown", BAD)
    output.publish("unknown")
    read = []
    tail = type(output.storage).tail
    monkeypatch.setattr(
        type(output.storage), "tail", lambda self, url, n: read.append(url) or tail(self, url, n)
    )
    quick = removed(stale_rejects(output.storage, output.path, lost={known}), output)
    assert sorted(quick) == sorted([rejects("twice", twice), rejects("known", known)])
    assert len(read) == 3
    thorough = removed(stale_rejects(output.storage, output.path), output)
    assert thorough == [rejects("unknown", unknown)]


def test_old_failures_go(output):
    for name in ("a", "b"):
        give_up(output, name)
    output.publish("a")
    gone = removed(leftovers(output.storage, output.path), output)
    assert gone == [f"failed/{output_name(shard_id('a'))}.json"]
    assert f"failed/{output_name(shard_id('b'))}.json" in output.urls()


def test_foreign_objects_stay(output):
    foreign = {
        "notes.txt",
        "embeddings/extra.parquet",
        "rejects/by-hand.parquet",
        f"rejects/{'0' * 32}.parquet",
        f"rejects/unknown.{'0' * 32}.parquet",
        "failed/x.json",
        "embeddings/.hidden",
    }
    for name in foreign:
        output.storage.put(f"{output.path}/{name}", b"mine")
    assert removed(leftovers(output.storage, output.path), output) == []
    assert output.urls() == foreign


def test_temporary_files_go_when_nobody_writes_them_any_more(tmp_path):
    output = Output(f"file://{tmp_path}/out")
    output.publish("a")
    old, young = (f"embeddings/.{digit * 32}.embedmill-tmp" for digit in "01")
    for name in (old, young):
        (tmp_path / "out" / name).write_bytes(b"half")
    stat = os.stat(tmp_path / "out" / old)
    os.utime(tmp_path / "out" / old, (stat.st_atime, stat.st_mtime - SETTLED_S - 1))
    assert removed(leftovers(output.storage, output.path), output) == [old]
    assert output.urls() == {embeddings("a"), young}


def test_a_freed_shard_loses_its_embeddings_first_and_others_lose_nothing(output):
    stale = output.leave_rejects("a", BAD)
    attempt = output.publish("a", rejects=BAD)
    other = output.publish("b", rejects=BAD)
    give_up(output, "a")
    gone = removed(freed(output.storage, output.path, [shard_id("a")]), output)
    assert gone[0] == embeddings("a")
    assert set(gone[1:3]) == {rejects("a", stale), rejects("a", attempt)}
    assert gone[3:] == [f"failed/{output_name(shard_id('a'))}.json"]
    assert output.urls() == {embeddings("b"), rejects("b", other)}


def test_a_shard_that_was_given_up_is_freed(output):
    give_up(output, "a")
    gone = removed(freed(output.storage, output.path, [shard_id("a")]), output)
    assert gone == [f"failed/{output_name(shard_id('a'))}.json"]


def test_shards_are_found_by_the_reasons_that_they_committed(output):
    output.publish("a", rejects={"x": "decode_timeout", "y": "unknown_format"})
    output.publish("b", rejects={"x": "unknown_format"})
    output.publish("c")
    output.leave_rejects("d", {"x": "decode_timeout"})
    output.publish("d", rejects={"x": "unknown_format"})
    found = with_reasons(output.storage, output.path, {"decode_timeout", "decoder_crashed"})
    assert list(found) == [shard_id("a")]


def test_without_a_choice_leftovers_and_dead_spools_go(output, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    spool = tmp_path / "tmp" / "embedmill-spool-x"
    spool.mkdir(parents=True)
    (spool / "rows.parquet").write_bytes(b"half")
    os.utime(spool, (0, 0))
    killed = output.leave_rejects("a", BAD)
    output.publish("a")
    os.utime(spool, (0, 0))
    chosen = removals(output.storage, output.path, specs=[], reasons=[])
    for removal in chosen:
        remove(output.storage, removal)
    assert rejects("a", killed) not in output.urls()
    assert not spool.exists()


def test_specs_and_reasons_together_choose_the_named_that_have_it(output):
    for name in ("a", "b", "c"):
        output.publish(name, rejects={"x": "decode_timeout"} if name != "b" else BAD)
    chosen = removals(
        output.storage, output.path, specs=["s3://in/{a,b}.tar"], reasons=["decode_timeout"]
    )
    gone = {url for url in removed(chosen, output) if url.startswith("embeddings/")}
    assert gone == {embeddings("a")}


def test_an_unknown_reason_is_refused_with_the_known_ones(output):
    with pytest.raises(ConfigError, match=r"decode_timeuot; known: no_image.*decode_timeout"):
        next(removals(output.storage, output.path, specs=[], reasons=["decode_timeuot"]))


def test_the_end_of_a_run_counts_what_it_removes(output):
    lost = output.leave_rejects("a", BAD)
    output.publish("a")
    assert remove_stale_rejects(output.storage, output.path, {lost}) == 1
    assert remove_stale_rejects(output.storage, output.path, {lost}) == 0
