"""Storage that throttles once: a filesystem for Ray Data, and a web server for embedmill.

In a module of its own, because Ray's workers must be able to import the filesystem.
"""

import io
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec.implementations.local
import pyarrow.fs

SLOW_DOWN = "AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate."


def throttled_filesystem(path: Path, at: int) -> pyarrow.fs.FileSystem:
    """A local filesystem where the read that reaches byte `at` fails once."""
    Path(f"{path}.throttled").unlink(missing_ok=True)
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(ThrottledFiles(at=at)))


class ThrottledFile(io.FileIO):
    """Raises what S3 says when it throttles, in the read of one byte; a marker file ends it."""

    def __init__(self, path: str, at: int) -> None:
        super().__init__(path, "rb")
        self._marker, self._at = Path(path + ".throttled"), at

    def read(self, size: int = -1) -> bytes:
        end = self.tell() + size if size >= 0 else math.inf
        if self.tell() <= self._at < end and not self._marker.exists():
            self._marker.touch()
            raise OSError(SLOW_DOWN)
        return super().read(size)


class ThrottledFiles(fsspec.implementations.local.LocalFileSystem):
    cachable = False

    def __init__(self, at: int = 0, **options) -> None:
        super().__init__(at=at, **options)
        self._at = at

    def _open(self, path, mode="rb", block_size=None, **options):
        return ThrottledFile(path, self._at)


class RangeHandler(BaseHTTPRequestHandler):
    """Serves one body in ranges; answers 503 once, to the range that holds a chosen byte."""

    protocol_version = "HTTP/1.1"
    body = b""
    fail_at = -1

    def do_HEAD(self) -> None:
        self._answer(200, b"", len(self.body))

    def do_GET(self) -> None:
        start, end = 0, len(self.body) - 1
        if found := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, end = int(found[1]), min(int(found[2]), end)
        if start <= type(self).fail_at <= end:
            type(self).fail_at = -1
            self._answer(503, b"Slow Down", 9)
            return
        part = self.body[start : end + 1]
        place = {"Content-Range": f"bytes {start}-{end}/{len(self.body)}"}
        self._answer(206 if found else 200, part, len(part), place if found else {})

    def _answer(self, status: int, body: bytes, length: int, headers: dict | None = None) -> None:
        self.send_response(status)
        etag = {"ETag": '"1"', "Accept-Ranges": "bytes", "Content-Length": str(length)}
        for name, value in {**etag, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


@contextmanager
def throttled_server(body: bytes, at: int) -> Iterator[str]:
    """The URL of a server of these bytes, which answers 503 once."""
    handler = type("Handler", (RangeHandler,), {"body": body, "fail_at": at})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/shard.tar"
        if handler.fail_at != -1:
            raise RuntimeError(f"no request for byte {at}: the server never answered 503")
    finally:
        server.shutdown()
        server.server_close()
