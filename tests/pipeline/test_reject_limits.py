"""The share of rejects of a run and of what was committed before it."""

import pytest

from pipeline.config import LimitsConfig
from pipeline.errors import RejectionLimitError
from pipeline.manifest import embeddings_url, list_committed
from pipeline.records import ShardReport
from pipeline.reject_limits import RejectShare
from tests.pipeline.outputs import Output, shard_id

LIMITS = LimitsConfig(max_reject_share=0.5, min_images_for_share=10)
EXAMPLES = {"decode_error": "'k' in s3://in/a.tar: PNG: broken"}


def report(read, examples=EXAMPLES, **rejected):
    return ShardReport(
        shard="s3://in/a.tar",
        read=read,
        embedded=read - sum(rejected.values()),
        tokens=0,
        rejected=rejected,
        skipped={},
        warnings={},
        bytes_read=0,
        seconds={},
        examples=examples,
    )


def test_the_share_counts_once_enough_images_were_read():
    share = RejectShare(LIMITS)
    share.add(report(9, decode_error=9))
    share.add(report(11, decode_error=1))  # 10 of 20: at the limit
    with pytest.raises(RejectionLimitError):
        share.add(report(1, decode_error=1))


def test_the_message_has_the_most_frequent_reasons_with_examples():
    share = RejectShare(LIMITS)
    share.add(report(9, {"empty_image": "'first'"}, empty_image=1, no_image=2, too_many_pixels=1))
    with pytest.raises(RejectionLimitError) as caught:
        share.add(report(20, {**EXAMPLES, "empty_image": "'second'"}, decode_error=18))
    assert str(caught.value).splitlines()[:4] == [
        "at most limits.max_reject_share = 0.5 of all images may be rejected, found 22 of 29:",
        "  decode_error 18, e.g. 'k' in s3://in/a.tar: PNG: broken",
        "  no_image 2",
        "  empty_image 1, e.g. 'first'",
    ]


@pytest.fixture
def output():
    output = Output("memory:///limits")
    for name in ("a", "b", "c", "d"):
        output.publish(name, ("k0",), rejects={"x": "decode_error", "y": "no_image"})
    yield output
    for info in list(output.storage.list(output.path)):
        output.storage.delete(info.url)


def test_what_earlier_runs_committed_counts(output):
    committed = list_committed(output.storage, output.path)
    share = RejectShare(LIMITS)
    share.seed(output.storage, committed.sample, len(committed.numbers))
    share.add(report(4))  # 8 of 16 with those before
    with pytest.raises(RejectionLimitError, match=r"found 9 of 17, 4 shards of earlier runs inc"):
        share.add(report(1, decode_error=1))


def test_a_sample_of_what_is_committed_stands_for_all(output):
    share = RejectShare(LIMITS)
    sample = [embeddings_url(output.path, shard_id(name)) for name in ("a", "b")]
    share.seed(output.storage, sample, 200)
    with pytest.raises(RejectionLimitError) as caught:
        share.add(report(0))
    assert "found 400 of 600, 200 shards of earlier runs included, estimated from 2" in str(
        caught.value
    )


def test_objects_that_cannot_be_read_are_named_and_left_out(output, caplog):
    broken, gone = (embeddings_url(output.path, shard_id(name)) for name in ("a", "b"))
    output.storage.put(broken, b"PAR1 and no more")
    output.storage.delete(gone)
    share = RejectShare(LIMITS)
    sample = [broken, gone, *(embeddings_url(output.path, shard_id(name)) for name in ("c", "d"))]
    share.seed(output.storage, sample, 4)
    assert [url in caplog.text for url in (broken, gone)] == [True, True]
    with pytest.raises(RejectionLimitError, match=r"found 8 of 12, 4 .*, estimated from 2 of them"):
        share.add(report(0))
