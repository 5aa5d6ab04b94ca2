"""Plain web servers: with and without ranges, ETags, passwords and signatures; reading only."""

import base64
import contextlib
import hashlib
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.config import StorageConfig
from pipeline.errors import ConfigError, StorageError
from pipeline.storage import Storage
from tests.integration.proxy import faulty_proxy

SIZE = 5_000_000


class Plain(SimpleHTTPRequestHandler):
    """The standard library's server: no ranges, no ETags."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass


class Ranges(Plain):
    """Ranges and Last-Modified, no ETag."""

    etag = None

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file() or "range" not in self.headers:
            return super().do_GET()
        data = path.read_bytes()
        start, end = self.headers["range"].removeprefix("bytes=").split("-")
        part = data[int(start) : int(end) + 1]
        if not part:
            return self.send_error(416)
        self.send_response(206)
        self.send_header("content-length", str(len(part)))
        self.send_header("content-range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
        self.send_header("last-modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self):
        path = Path(self.translate_path(self.path))
        if self.etag and path.is_file():
            self.send_header("etag", self.etag % hashlib.md5(path.read_bytes()).hexdigest())
        super().end_headers()


class StrongETags(Ranges):
    etag = '"%s"'


class WeakETags(Ranges):
    etag = 'W/"%s"'


class Guarded(StrongETags):
    """A password and a signature in the query, which is for GET only."""

    def do_GET(self):
        wanted = "Basic " + base64.b64encode(b"user:hunter2").decode()
        if not self.path.endswith("?sig=hunter3") or self.headers["authorization"] != wanted:
            return self.send_error(403)
        super().do_GET()

    def do_HEAD(self):
        self.send_error(403)


@contextlib.contextmanager
def serving(handler, folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def data():
    return os.urandom(SIZE)


@pytest.fixture
def folder(tmp_path, data):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a b%.tar").write_bytes(data)
    (tmp_path / "web" / "empty").write_bytes(b"")
    return tmp_path / "web"


@pytest.fixture(params=[Plain, Ranges, StrongETags, WeakETags])
def server(request, folder):
    with serving(request.param, folder) as endpoint:
        yield endpoint


@pytest.fixture
def storage():
    return Storage(StorageConfig(range_mib=1, retries=10))


def test_an_object_comes_back_as_it_was(storage, server, data):
    url = f"{server}/a%20b%25.tar"
    info = storage.info(url)
    assert (info.url, info.size) == (url, SIZE)
    assert info.etag  # or the time of the last change
    with storage.open(url) as stream:
        assert stream.read(10) + stream.read() == data
        assert stream.info == info
    assert storage.read(url) == data
    assert storage.read(f"{server}/empty") == b""
    with storage.open(f"{server}/empty") as stream:
        assert stream.read() == b""


def test_faults_pass(storage, server, data):
    with faulty_proxy(server) as proxy:
        proxy.plan.rate = 0.3
        with storage.open(f"{proxy.endpoint}/a%20b%25.tar") as stream:
            assert stream.read() == data
        assert proxy.faults


def test_a_server_without_ranges_is_read_once_into_a_file_that_is_gone(
    storage, folder, tmp_path, monkeypatch
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with serving(Plain, folder) as server, faulty_proxy(server) as proxy:
        with storage.open(f"{proxy.endpoint}/a%20b%25.tar") as stream:
            stream.read(1)
            assert list((tmp_path / "temporary").iterdir()) == []
            stream.read()
        whole = [one for one in proxy.seen if one.method == "GET" and "range" not in one.headers]
        assert len(whole) == 1


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, SIZE // 2, 1])
@pytest.mark.parametrize("handler", [Ranges, StrongETags, WeakETags])
def test_an_object_that_changes_is_an_error(storage, folder, handler, size):
    with serving(handler, folder) as server, storage.open(f"{server}/a%20b%25.tar") as stream:
        stream.read(1)
        (folder / "a b%.tar").write_bytes(bytes(SIZE))
        os.utime(folder / "a b%.tar", (1, 1))
        with pytest.raises(StorageError) as caught:
            stream.read()
    assert caught.value.kind == "changed"


def test_passwords_and_signatures_are_sent_and_not_shown(storage, folder, data):
    with serving(Guarded, folder) as server:
        host = server.removeprefix("http://")
        url = f"http://user:hunter2@{host}/a%20b%25.tar?sig=hunter3"
        with storage.open(url) as stream:
            assert stream.read() == data
            assert stream.info.url == f"{server}/a%20b%25.tar"
        for wrong in (url.replace("hunter2", "hunter4"), url.replace("hunter3", "hunter4")):
            with pytest.raises(StorageError) as caught:
                storage.open(wrong)
            assert caught.value.kind == "denied"
            assert "hunter" not in repr(caught.value)
    with pytest.raises(StorageError) as caught:
        Storage(StorageConfig(retries=0)).read(url)
    assert caught.value.transient
    assert "hunter" not in repr(caught.value)


def test_a_missing_page_is_not_found(storage, server):
    for operation in (storage.info, storage.open, storage.read):
        with pytest.raises(StorageError, match="404") as caught:
            operation(f"{server}/no.tar")
        assert caught.value.kind == "not_found"


def test_there_is_no_writing_and_no_listing(storage, server):
    calls = [
        lambda: storage.create(f"{server}/x", b""),
        lambda: storage.put(f"{server}/x", b""),
        lambda: storage.delete(f"{server}/x"),
        lambda: list(storage.list(server)),
    ]
    for call in calls:
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.kind == "unsupported"


def test_unknown_options_are_named():
    with pytest.raises(ConfigError, match=r"storage\.http has no option 'token'"):
        Storage(StorageConfig(http={"token": "x"})).info("http://127.0.0.1:9/x")
