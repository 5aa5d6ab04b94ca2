"""An HTTP proxy that fails on purpose, to stand between a client and a real server in tests.

Whether a request fails, and how, follows from the seed, the request and how often it came before:
a run with one seed meets the same faults in whatever order its threads and processes ask.
"""

import contextlib
import hashlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# cut: closed before the server hears of it. lose_answer: the server did it, the client never hears.
# truncate: half the body, then closed. short: half the body, and a length that says so.
# Only by script: stall, no answer until the client gives up; any status as a number.
FAULTS = ("cut", "500", "503", "429", "truncate", "short", "lose_answer")
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 409: "ConditionalRequestConflict"}
_CODES |= {429: "SlowDown", 500: "InternalError", 503: "SlowDown"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}
_CHUNK = 1 << 16


@dataclass(slots=True)
class Plan:
    """What goes wrong. Tests change it while the proxy runs."""

    rate: float = 0.0  # share of requests that meet one of `faults`
    seed: int = 0
    faults: tuple[str, ...] = FAULTS
    refuse: dict[str, int] = field(default_factory=dict)  # part of a path: the status it gets
    script: list[tuple[str, str]] = field(default_factory=list)  # (method, fault or "pass"), once
    drop_headers: set[str] = field(default_factory=set)  # lower case, hidden from the server


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    fault: str | None


class FaultyProxy:
    """A running proxy: connect to `endpoint`, change `plan`, look at `seen`."""

    def __init__(self, upstream: str) -> None:
        self.plan = Plan()
        self.seen: list[Request] = []
        self.under_way = 0  # requests
        self.clients: set[socket.socket] = set()
        self.closing = threading.Event()
        self._upstream = urlsplit(upstream)
        self._times: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def faults(self) -> Counter[str]:
        """How often each fault was met."""
        with self._lock:
            return Counter(request.fault for request in self.seen if request.fault)

    def connect(self) -> http.client.HTTPConnection:
        upstream = http.client.HTTPConnection(self._upstream.netloc, timeout=60)
        upstream.connect()
        upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return upstream

    def started(self, method: str, path: str, headers: dict[str, str]) -> str | None:
        with self._lock:
            fault = self._draw(method, path, headers)
            self.seen.append(Request(method, path, headers, fault))
            self.under_way += 1
            return fault

    def finished(self) -> None:
        with self._lock:
            self.under_way -= 1

    def drop_connections(self) -> None:
        """None; closes what clients keep open, as servers do with idle connections."""
        for client in list(self.clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _draw(self, method: str, path: str, headers: dict[str, str]) -> str | None:
        for number, (wanted, fault) in enumerate(self.plan.script):
            if wanted == method:
                del self.plan.script[number]
                return None if fault == "pass" else fault
        for part, status in self.plan.refuse.items():
            if part in path:
                return str(status)
        request = (method, path, headers.get("range", ""))
        self._times[request] += 1
        text = repr((self.plan.seed, *request, self._times[request]))
        digest = hashlib.sha256(text.encode()).digest()
        if int.from_bytes(digest[:8]) >= self.plan.rate * 2**64:
            return None
        return self.plan.faults[digest[8] % len(self.plan.faults)]


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    upstream: http.client.HTTPConnection | None = None

    def setup(self) -> None:
        super().setup()
        self.server.proxy.clients.add(self.connection)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients go away, that is what is tested
            super().handle()

    def finish(self) -> None:
        self.server.proxy.clients.discard(self.connection)
        if self.upstream:
            self.upstream.close()
        with contextlib.suppress(ConnectionError):
            super().finish()

    def log_message(self, *_) -> None:
        pass

    def _serve(self) -> None:
        proxy: FaultyProxy = self.server.proxy
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = proxy.started(self.command, self.path, headers)
        try:
            self._answer(headers, fault)
        finally:
            proxy.finished()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _answer(self, headers: dict[str, str], fault: str | None) -> None:
        if fault == "cut":
            return self._hang_up()
        if fault == "stall":
            self.server.proxy.closing.wait(30)
            return self._hang_up()
        if fault and fault.isdigit():
            for _ in self._body():
                pass
            return self._refuse(int(fault))
        answer = self._forward(headers)
        if fault == "lose_answer":
            answer.read()
            return self._hang_up()
        self._send_back(answer, fault)

    def _body(self) -> Iterator[bytes]:
        left = int(self.headers.get("content-length") or 0)
        while left:
            data = self.rfile.read(min(left, _CHUNK))
            if not data:
                raise ConnectionResetError
            left -= len(data)
            yield data

    def _forward(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self.upstream is None:
            self.upstream = self.server.proxy.connect()
        dropped = _HOP_BY_HOP | self.server.proxy.plan.drop_headers
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name not in dropped:
                self.upstream.putheader(name, value)
        self.upstream.endheaders()
        for data in self._body():
            self.upstream.send(data)
        return self.upstream.getresponse()

    def _send_back(self, answer: http.client.HTTPResponse, fault: str | None) -> None:
        body = answer.read()
        if fault and not body:
            return self._hang_up()
        part = body[: len(body) // 2] if fault else body
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        length = len(part if fault == "short" else body)
        if self.command == "HEAD":
            length = answer.getheader("content-length", "0")
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(part)
        if fault == "truncate":
            self._hang_up()

    def _refuse(self, status: int) -> None:
        code = _CODES.get(status, "Refused")
        body = f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
