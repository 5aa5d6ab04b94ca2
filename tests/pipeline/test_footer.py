import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import OutputError
from pipeline.footer import read_footer
from pipeline.manifest import embeddings_url
from tests.pipeline.outputs import Output, shard_id

URL = "memory:///footer/embeddings/x.parquet"


@pytest.fixture
def output():
    return Output("memory:///footer")


def foreign_parquet():
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), buffer)
    return buffer.getvalue()


def test_it_is_read_from_the_tail(output):
    attempt = output.publish("a")
    footer = read_footer(output.storage, embeddings_url(output.path, shard_id("a")))
    assert (footer["attempt"], footer["read"], footer["passes"]) == (attempt, 3, 1)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all" * 9, foreign_parquet()])
def test_what_no_run_published_is_named(output, data):
    output.storage.put(URL, data)
    with pytest.raises(OutputError, match=f"^{URL} must be the embeddings of a shard"):
        read_footer(output.storage, URL)
