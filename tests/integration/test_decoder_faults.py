"""A decoder that hangs or crashes costs its own image a row, and no other image anything."""

import pytest

from tests.integration.conftest import embedmill, plant, read_rejects, read_rows, write_shard

# Every worker of the run decodes with it.
PLANTED = """
import ctypes, os
import pipeline.preprocess as preprocess

decode = preprocess.decode

def planted(data, *rest, **options):
    if data == b"hang":
        ctypes.PyDLL(None).sleep(1000)  # C code that never lets go of the interpreter lock
    if data == b"crash":
        os.kill(os.getpid(), 11)
    return decode(data, *rest, **options)

preprocess.decode = planted
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hanging_and_a_crashing_decoder_cost_one_image_each(
    tmp_path, photos, write_config, monkeypatch
):
    names = list(photos)[:6]
    good = {name: photos[name] for name in names}
    write_shard(tmp_path / "shards" / "a.tar", good | {"hang.jpg": b"hang"})
    write_shard(tmp_path / "shards" / "b.tar", {"crash.jpg": b"crash"} | good)
    site = tmp_path / "site"
    plant(site, PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(site))
    run = embedmill("run", write_config(preprocess={"decode_timeout_s": 3}))
    assert run.returncode == 0, run.stderr
    assert len(read_rows(tmp_path / "out")) == 12
    reasons = {reject["key"]: reject["reason"] for reject in read_rejects(tmp_path / "out")}
    assert reasons == {"hang": "decode_timeout", "crash": "decoder_crashed"}
