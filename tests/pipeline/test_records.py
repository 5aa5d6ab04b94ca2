"""Records are values: they cannot change, and the ones that travel do so unharmed."""

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder.batch import PackedBatch
from pipeline import records
from pipeline.records import (
    End,
    Pack,
    Rejection,
    Rejections,
    RejectReason,
    RowInfo,
    SampleId,
    ShardReport,
)

RECORDS = [item for item in vars(records).values() if is_dataclass(item)]
ID = SampleId(shard="file:///data/a.tar", key="0001")


def report(**counts):
    values = {"read": 3, "embedded": 2, "rejected": {"no_image": 1}, "tokens": 9, **counts}
    return ShardReport(
        shard=ID.shard,
        skipped={},
        warnings={},
        bytes_read=9,
        seconds={"read": 0.5},
        **values,
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_slotted_and_keyword_only(record):
    assert record.__dataclass_params__.frozen
    assert "__slots__" in vars(record)
    assert all(field.kw_only for field in fields(record))


def test_a_record_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        ID.key = "0002"


def test_ids_are_told_apart_by_both_parts():
    same = SampleId(shard="file:///data/a.tar", key="0001")
    assert (same, hash(same)) == (ID, hash(ID))
    assert len({ID, replace(ID, key="0002"), replace(ID, shard="file:///data/b.tar")}) == 3


def test_an_id_reads_as_key_and_shard():
    assert str(ID) == "'0001' in file:///data/a.tar"


@given(
    embedded=st.integers(0, 1000),
    rejected=st.dictionaries(st.sampled_from(RejectReason), st.integers(1, 1000)),
    lost=st.integers(-5, 5),
)
def test_a_report_balances_only_if_nothing_was_lost(embedded, rejected, lost):
    read = embedded + sum(rejected.values()) + lost
    assert report(read=read, embedded=embedded, rejected=rejected).balanced == (lost == 0)


def test_reject_reasons_are_words_that_scripts_can_use():
    assert all(reason.value == reason.name.lower() for reason in RejectReason)


def test_stream_items_survive_pickling():
    batch = PackedBatch(
        pixel_values=np.arange(6 * 768, dtype=np.int64).astype(np.uint8).reshape(6, 768),
        spatial_shapes=np.array([(2, 3)]),
        cu_seqlens=np.array([0, 6], np.int32),
        source_sizes=np.array([(200, 300)]),
        ids=(ID,),
    )
    pack = Pack(batch=batch, rows=(RowInfo(index=4, truncated=False, metadata={"caption": "a"}),))
    rejection = Rejection(id=ID, index=5, reason=RejectReason.NO_IMAGE, detail="only 0001.json")
    others = [Rejections(items=(rejection,)), End(report=report(), size=10, etag=None)]
    assert pickle.loads(pickle.dumps(others)) == others

    received = pickle.loads(pickle.dumps(pack))
    received.batch.check()
    assert (received.rows, received.batch.ids) == (pack.rows, batch.ids)
    for name in ("pixel_values", "spatial_shapes", "cu_seqlens", "source_sizes"):
        np.testing.assert_array_equal(getattr(received.batch, name), getattr(batch, name))
