"""Every exception class of both packages survives the pickling by which Ray moves it."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import encoder
import pipeline
from pipeline.errors import EmbedmillError, SampleError, ShardError, StorageError
from pipeline.records import RejectReason


def exception_classes():
    """Classes that are defined in any module of the two packages, also ones added later."""
    for package in (encoder, pipeline):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue  # running it is its purpose
            module = importlib.import_module(info.name)
            for _, item in inspect.getmembers(module, inspect.isclass):
                if issubclass(item, BaseException) and item.__module__ == info.name:
                    yield item


CLASSES = sorted(exception_classes(), key=lambda cls: (cls.__module__, cls.__name__))


def arguments(cls):
    """Strategies for the positional arguments, by the annotations of __init__."""
    hints = get_type_hints(cls.__init__)
    hints.pop("return", None)
    return [st.from_type(hint) for hint in hints.values()] or [st.text()]


def test_the_classes_are_found():
    names = {cls.__name__ for cls in CLASSES}
    assert {"PackMismatchError", "CheckpointError", "StorageError", "InvariantError"} <= names


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
@given(data=st.data())
def test_pickling_keeps_type_text_and_data(cls, data):
    error = cls(*(data.draw(strategy) for strategy in arguments(cls)))
    for received in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(received) is cls
        assert str(received) == str(error)
        assert (received.args, vars(received)) == (error.args, vars(error))


def test_errors_of_the_pipeline_share_a_base():
    # ValueErrors are raised and caught inside one module, or belong to the encoder's library.
    others = [cls for cls in CLASSES if not issubclass(cls, EmbedmillError | ValueError)]
    assert others == []


def test_texts():
    assert (
        str(SampleError(RejectReason.TRUNCATED_IMAGE, "cut.jpg: 3 of 9 bytes"))
        == "truncated_image: cut.jpg: 3 of 9 bytes"
    )
    assert str(ShardError("no end")) == "no end"
    assert str(ShardError("no end", "file:///a.tar")) == "file:///a.tar: no end"
    error = StorageError("timed out", "s3://bucket/a.tar", "read", "transient")
    assert str(error) == "cannot read s3://bucket/a.tar: timed out"
    assert error.transient
    assert not StorageError("no", "s3://bucket/a.tar", "read", "denied").transient
