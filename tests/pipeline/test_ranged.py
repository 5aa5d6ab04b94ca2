"""The ranged reader: bytes in order whatever the sizes, errors that stay, nothing held open."""

import io
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import StorageError
from pipeline.ranged import RangedReader
from pipeline.urls import ObjectInfo

DATA = bytes(range(256)) * 41


def reader(data=DATA, *, range_bytes=1000, read_ahead=2, fetch=None):
    def from_data(start, end, stop):
        return memoryview(data)[start:end]

    info = ObjectInfo(url="memory://b/x", size=len(data), etag=None)
    return RangedReader(info, fetch or from_data, range_bytes=range_bytes, read_ahead=read_ahead)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(0, 3000),
    range_bytes=st.integers(1, 1500),
    read_ahead=st.integers(0, 4),
    reads=st.lists(st.integers(-1, 2000), max_size=8),
)
def test_reads_like_a_file(size, range_bytes, read_ahead, reads):
    plain = io.BytesIO(DATA[:size])
    with reader(DATA[:size], range_bytes=range_bytes, read_ahead=read_ahead) as stream:
        for count in [*reads, -1, 1]:
            assert stream.read(count) == plain.read(count)
            assert stream.tell() == plain.tell()


@pytest.mark.parametrize("read_ahead", [0, 1, 2, 5])
def test_only_so_many_ranges_are_fetched_ahead(read_ahead):
    asked = []
    lock = threading.Lock()

    def fetch(start, end, stop):
        with lock:
            asked.append((start, end))
        return memoryview(DATA)[start:end]

    with reader(fetch=fetch, read_ahead=read_ahead) as stream:
        assert asked == []
        stream.read(1)
        stream._pool.shutdown(wait=True)  # whatever was asked for is there now
        assert sorted(asked) == [(n * 1000, n * 1000 + 1000) for n in range(read_ahead + 1)]


def test_an_error_comes_when_its_range_is_reached_and_stays():
    def fetch(start, end, stop):
        if start == 2000:
            raise StorageError("gone", "memory://b/x", "read", "not_found")
        return memoryview(DATA)[start:end]

    with reader(fetch=fetch) as stream:
        assert stream.read(2000) == DATA[:2000]
        for _ in range(3):
            with pytest.raises(StorageError, match="gone"):
                stream.read(1)


def test_closing_does_not_wait_and_stops_retries():
    started = threading.Event()
    stopped = threading.Event()

    def fetch(start, end, stop):
        if start:
            started.set()
            stopped.set() if stop.wait(30) else None
        return memoryview(DATA)[start:end]

    stream = reader(fetch=fetch)
    stream.read(1)
    assert started.wait(10)
    stream.close()
    assert stopped.wait(10)
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)
