"""A Ray head of a test's own: its own folder, ports and token, ended by its own processes."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ray.cluster_utils import FAKE_HEAD_NODE_ID

RAY = str(Path(sys.executable).with_name("ray"))
STORE = 150 << 20
# Nodes that are processes on this machine. What is empty here `ray up` would fill in.
FAKE_NODES = {
    "cluster_name": "fake",
    "idle_timeout_minutes": 0.03,
    "upscaling_speed": 10.0,
    "head_node_type": "ray.head.default",
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}
FAKE_PROVIDER = {
    "type": "external",
    "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
    "launch_multiple": True,
    "head_node_id": FAKE_HEAD_NODE_ID,
}
FAKE_ENV = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    address: str  # of the cluster
    dashboard: str
    env: dict[str, str]  # for its clients


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def ray_head(folder: Path, *, num_cpus: int, node_types: dict | None = None, **env: str):
    """Yields a Head that asks its clients for a token.

    With `node_types`, as in a cluster YAML, the autoscaler (v2) starts such nodes here on demand.
    `folder` must have a short path: Ray's sockets lie below it, and theirs end at 107 bytes.
    """
    port, dashboard, grpc, listen, client, metrics = free_ports(6)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    shared = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [
        *(RAY, "start", "--head", "--block", "--node-ip-address", "127.0.0.1"),
        *("--port", str(port), "--temp-dir", str(folder / "r")),
        *("--dashboard-port", str(dashboard), "--dashboard-agent-grpc-port", str(grpc)),
        *("--dashboard-agent-listen-port", str(listen), "--ray-client-server-port", str(client)),
        *("--metrics-export-port", str(metrics), "--object-store-memory", str(STORE)),
        *("--num-cpus", str(num_cpus), "--disable-usage-stats"),
    ]
    if node_types is not None:
        head = {
            "ray.head.default": {
                "resources": {"CPU": num_cpus},
                "node_config": {},
                "max_workers": 0,
            }
        }
        config = FAKE_NODES | {
            "provider": FAKE_PROVIDER | {"gcs_address": f"127.0.0.1:{port}"},
            "max_workers": sum(node["max_workers"] for node in node_types.values()),
            "available_node_types": node_types | head,
        }
        (folder / "cluster.yaml").write_text(json.dumps(config))  # JSON is YAML
        command += ["--autoscaling-config", str(folder / "cluster.yaml")]
        env = env | FAKE_ENV
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=shared | env, stdout=log, stderr=log)
    try:
        _wait_until_open(dashboard, process, folder / "head.log")
        yield Head(
            address=f"127.0.0.1:{port}", dashboard=f"http://127.0.0.1:{dashboard}", env=shared
        )
    finally:
        _end(process, token)


def _wait_until_open(port: int, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise AssertionError(f"no dashboard on port {port}: {log.read_text()}")


def _end(process: subprocess.Popen, token: Path) -> None:
    """Ends the head and what it started, children or not: all that know its token."""
    process.terminate()
    family = list(_with_token(token))
    psutil.wait_procs(family, timeout=3)
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _with_token(token: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # of others, or gone
            if process.environ().get("RAY_AUTH_TOKEN_PATH") == str(token):
                yield process
