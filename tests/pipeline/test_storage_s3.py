"""S3 faults one by one: what each becomes, what is tried again, and what is never done twice."""

import os
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from obstore.store import S3Store

from pipeline.config import StorageConfig
from pipeline.errors import StorageError
from pipeline.manifest import open_run
from pipeline.run_record import read_run
from pipeline.storage import Storage
from tests.integration.s3_server import s3_options
from tests.pipeline.outputs import MODEL, Output

PASSING = ["cut", "500", "503", "429", "lose_answer"]


@pytest.fixture
def storage(proxy):
    return Storage(StorageConfig(s3=s3_options(proxy.endpoint), range_mib=1))


@pytest.fixture
def hasty(proxy):
    """Storage that does not try again."""
    config = StorageConfig(s3=s3_options(proxy.endpoint), retries=0)
    return Storage(config)


@pytest.fixture
def folder(request):
    return f"s3://bucket/{request.node.name.replace('[', '/').strip(']')}"


def anonymous_memory():
    """Bytes of this process that no file backs."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) << 10


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def methods(proxy):
    return [request.method for request in proxy.seen]


@pytest.mark.parametrize("fault", [*PASSING, "truncate", "short"])
def test_a_fault_that_passes_is_transient_and_passes(proxy, storage, hasty, folder, fault):
    storage.put(f"{folder}/x", b"x" * 1000)
    info = storage.info(f"{folder}/x")
    calls = [("GET", lambda of: of.read(f"{folder}/x"), b"x" * 1000)]
    calls += [("GET", lambda of: list(of.list(folder)), [info])]
    if fault != "short":  # no body
        calls += [("HEAD", lambda of: of.info(f"{folder}/x"), info)]
    for method, call, wanted in calls:
        proxy.plan.script = [(method, fault)]
        with pytest.raises(StorageError) as caught:
            call(hasty)
        assert caught.value.transient
        assert caught.value.url in (f"{folder}/x", folder)
        proxy.plan.script = [(method, fault)]
        assert call(storage) == wanted


def test_a_server_that_does_not_answer_is_given_up_in_time(proxy, folder):
    config = StorageConfig(s3=s3_options(proxy.endpoint), retries=1, request_timeout_s=0.7)
    proxy.plan.script = [("PUT", "stall"), ("GET", "stall"), ("GET", "stall")]
    assert Storage(config).create(f"{folder}/x", b"x")
    with pytest.raises(StorageError, match=r"timed out\) \(tried 2 times\)"):
        Storage(config).read(f"{folder}/x")
    assert Storage(config).read(f"{folder}/x") == b"x"


@pytest.mark.parametrize("fault", [*PASSING, "409"])
def test_a_create_that_fails_is_tried_again_and_creates_once(proxy, storage, folder, fault):
    proxy.plan.script = [("PUT", fault)]
    created = storage.create(f"{folder}/x", b"mine")
    assert created == (fault != "lose_answer")  # then the next try found it there
    assert storage.read(f"{folder}/x") == b"mine"
    puts = [request for request in proxy.seen if request.method == "PUT"]
    assert len(puts) == 2
    assert {request.headers.get("if-none-match") for request in puts} == {"*"}


def test_every_range_is_pinned_and_nothing_is_read_whole(proxy, storage, folder):
    data = os.urandom(8 << 20)
    storage.put(f"{folder}/x", data)
    etag = storage.info(f"{folder}/x").etag
    proxy.seen.clear()
    proxy.plan.rate = 0.3
    with storage.open(f"{folder}/x") as stream:
        assert stream.read() == data
    gets = [request for request in proxy.seen if request.method == "GET"]
    wanted = {f"bytes={start}-{start + (1 << 20) - 1}" for start in range(0, 8 << 20, 1 << 20)}
    assert {request.headers["range"] for request in gets} == wanted
    assert {request.headers["if-match"] for request in gets} == {etag}
    assert sum(proxy.faults.values()) > 0
    failed = sum(request.fault is not None for request in gets)
    assert len(gets) == 8 + failed  # only what failed was asked for again


def test_a_reader_that_pauses_holds_no_request(proxy, storage, folder):
    storage.put(f"{folder}/x", bytes(8 << 20))
    proxy.seen.clear()
    with storage.open(f"{folder}/x") as stream:
        stream.read(1)
        wait_until(lambda: len(proxy.seen) == 4 and not proxy.under_way)
        time.sleep(0.2)
        assert methods(proxy) == ["HEAD", "GET", "GET", "GET"]
        proxy.drop_connections()  # as servers do with idle ones
        assert stream.read() == bytes((8 << 20) - 1)


@pytest.mark.parametrize(("status", "kind"), [(403, "denied"), (404, "not_found")])
@pytest.mark.parametrize("operation", ["info", "read", "open", "create", "put", "delete", "list"])
def test_what_is_refused_is_named_at_once(proxy, storage, folder, status, kind, operation):
    proxy.plan.refuse = {folder.removeprefix("s3://bucket/").replace("/", "%2F"): status}
    proxy.plan.refuse |= {folder.removeprefix("s3://bucket/"): status}
    arguments = {"create": [b""], "put": [b""]}.get(operation, [])
    if operation == "delete" and status == 404:
        return storage.delete(f"{folder}/x")
    with pytest.raises(StorageError) as caught:
        list(getattr(storage, operation)(f"{folder}/x", *arguments))
    assert len(proxy.seen) == 1
    error = caught.value
    assert (error.kind, error.url) == (kind, f"{folder}/x")
    assert str(error).startswith(f"cannot {error.operation} {folder}/x: server answered {status}")


def test_a_range_that_is_refused_midway(proxy, storage, folder):
    storage.put(f"{folder}/x", bytes(4 << 20))
    with storage.open(f"{folder}/x") as stream:
        proxy.plan.refuse = {folder.removeprefix("s3://bucket/"): 403}
        with pytest.raises(StorageError, match="403 Forbidden"):
            stream.read()


def test_wrong_secrets_are_denied_and_not_shown(s3, folder):
    options = {**s3_options(s3.endpoint), "secret_access_key": "hunter2"}
    for call in ("read", "info"):
        with pytest.raises(StorageError) as caught:
            getattr(Storage(StorageConfig(s3=options)), call)(f"{folder}/x")
        assert caught.value.kind == "denied"
        assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("operation", ["read", "info", "list"])
def test_a_missing_bucket_is_not_found(s3, operation):
    storage = Storage(StorageConfig(s3=s3_options(s3.endpoint)))
    with pytest.raises(StorageError) as caught:
        list(getattr(storage, operation)("s3://no-such-bucket/x"))
    assert caught.value.kind == "not_found"


def test_a_server_that_is_not_there_is_transient_and_says_why():
    config = StorageConfig(s3=s3_options("http://127.0.0.1:9"), retries=1)
    with pytest.raises(StorageError, match=r"Connection refused\) \(tried 2 times\)") as caught:
        Storage(config).info("s3://bucket/x")
    assert caught.value.transient


@pytest.fixture
def unconditional(proxy):
    """Storage on a server that does not know conditional requests: the proxy hides them."""
    proxy.plan.drop_headers = {"if-none-match", "if-match"}
    options = {"endpoint": proxy.endpoint, "skip_signature": True}
    return Storage(StorageConfig(s3=options, range_mib=1))


def test_a_store_without_conditional_puts_is_found_out(unconditional):
    output = Output(f"memory:///{uuid4().hex}")
    folder = f"s3://public/{uuid4().hex}"
    facts = folder, output.config, MODEL, output.fingerprint
    assert not open_run(unconditional, *facts)
    assert read_run(unconditional, folder).fingerprint == output.fingerprint.sha  # whole after all
    assert open_run(output.storage, output.path, *facts[1:])
    assert open_run(output.storage, f"{output.path}/other", *facts[1:])


def test_a_change_is_noticed_where_the_server_ignores_if_match(unconditional):
    unconditional.put("s3://public/x", b"a" * (4 << 20))
    with unconditional.open("s3://public/x") as stream:
        stream.read(1)
        unconditional.put("s3://public/x", b"b" * (4 << 20))
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.kind == "changed"


def test_a_long_listing_survives_the_loss_of_each_page(proxy, storage, folder):
    # The 1,000th name, last of its page, is a file and a folder at once.
    names = [f"{number:04}" for number in range(999)]
    family = ["a", "a/b", "a/c", "a-b", "c"]
    prefix = folder.removeprefix("s3://bucket/")
    put = S3Store("bucket", config=storage._config.s3, client_options={"allow_http": True}).put
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: put(f"{prefix}/{name}", b""), names))
    for name in family:
        put(f"{prefix}/{name}", b"")
    wanted = sorted(f"{folder}/{name}" for name in [*names, *family])
    assert sorted(info.url for info in storage.list(folder)) == wanted
    for lost_page in (0, 1):
        proxy.plan.script = [*[("GET", "pass")] * lost_page, ("GET", "truncate")]
        assert sorted(info.url for info in storage.list(folder)) == wanted


def test_one_object_is_deleted_by_one_plain_request(proxy, storage, folder):
    storage.put(f"{folder}/x", b"")
    storage.delete(f"{folder}/x")
    assert methods(proxy) == ["PUT", "DELETE"]  # not every server knows the POST for many


def test_a_large_file_is_sent_without_reading_it_into_memory(s3, tmp_path, folder):
    source = tmp_path / "large"
    with open(source, "wb") as file:
        for _ in range(66):
            file.write(os.urandom(1 << 20))
    # Larger objects get more time than the 0.1 s of small ones, which is too short for this one.
    config = StorageConfig(s3=s3_options(s3.endpoint), retries=0, request_timeout_s=0.1)
    before = anonymous_memory()
    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(Storage(config).create, f"{folder}/x", source)
        peak = before
        while not created.done():
            peak = max(peak, anonymous_memory())
    assert created.result()
    assert peak - before < 16 << 20
    patient = Storage(StorageConfig(s3=s3_options(s3.endpoint)))
    assert patient.info(f"{folder}/x").size == 66 << 20


def test_the_marker_of_a_folder_is_no_object_in_it(s3, unconditional):
    request = urllib.request.Request(f"{s3.endpoint}/public/marked/", data=b"", method="PUT")
    urllib.request.urlopen(request).close()
    unconditional.put("s3://public/marked/x", b"")
    assert [info.url for info in unconditional.list("s3://public/marked")] == [
        "s3://public/marked/x"
    ]
