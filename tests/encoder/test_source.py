"""Checkpoint files from folders, and from a Hugging Face repository served on loopback."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from encoder.config import CheckpointError
from encoder.seeded import write_seeded_checkpoint
from encoder.source import find_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1, "num_patches": 16}
    return write_seeded_checkpoint(tmp_path / "seeded", **sizes)


def test_folder_with_one_file(folder):
    files = find_checkpoint(folder)
    assert (files.folder, files.revision, files.index) == (folder, None, None)
    assert files.weight_files == (folder / "model.safetensors",)


def test_revision_is_refused_for_a_folder(folder):
    with pytest.raises(CheckpointError, match="revision must be left out for a local folder"):
        find_checkpoint(folder, revision="main")


@pytest.mark.parametrize("name", ["", ".", "model.safetensors"])
def test_neither_folder_nor_repository(folder, name, monkeypatch):
    path = str(folder / name) if name else str(folder / "missing")
    if name == ".":
        path = "s3://bucket/checkpoint"
    found = "a file" if name == "model.safetensors" else "no such folder"
    with pytest.raises(CheckpointError, match=f"found {found} at '{re.escape(path)}'"):
        find_checkpoint(path)


def test_pickle_files_are_never_loaded(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = "must be safetensors, found only pickle files in .*: pytorch_model.bin"
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(folder)


def test_a_folder_without_weights_lists_what_it_holds(folder):
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"found neither in .*other\.safetensors"):
        find_checkpoint(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "must be JSON with a weight_map"),
        ("{}", "must be JSON with a weight_map"),
        ('{"weight_map": 3}', "must be JSON with a weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "files beside it, found '../model"),
        ('{"weight_map": {"a": "weights.bin"}}', "must name safetensors files beside it"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', "must be beside it and is not"),
    ],
)
def test_a_bad_index_is_named(folder, index, message):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(folder)


class Hub(BaseHTTPRequestHandler):
    """The two routes of a Hugging Face hub that we use, for owner/name."""

    files: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        match = re.fullmatch(r"/owner/name/resolve/([^/]+)/(.+)", self.path)
        self.requests.append(self.path)
        if self.path.startswith(f"/api/models/owner/name/tree/{COMMIT}"):
            entries = [
                {"type": "file", "path": name, "size": len(body), "oid": ""}
                for name, body in self.files.items()
            ]
            self.answer(200, json.dumps(entries).encode())
        elif match is None:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif match[1] not in ("main", "v1", COMMIT):
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif match[2] not in self.files:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            body = self.files[match[2]]
            self.answer(200, body, {"ETag": f'"{hashlib.sha1(body).hexdigest()}"'})

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status, body, headers=None) -> None:
        self.send_response(status)
        sizes = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        for name, value in ({"X-Repo-Commit": COMMIT} | sizes | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Silent."""


@pytest.fixture
def hub(folder):
    handler = type("FilledHub", (Hub,), {"requests": []})
    handler.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def describe_remote(hub, home, *arguments, offline=False) -> str:
    """What a fresh process prints: `revision digest`, or the CheckpointError."""
    code = (
        "import sys\n"
        "from encoder.checkpoint import describe_checkpoint\n"
        "from encoder.config import CheckpointError\n"
        "name, revision = sys.argv[1], (sys.argv + [None])[2]\n"
        "try:\n"
        "    found = describe_checkpoint(name, revision=revision)\n"
        "    print(found.revision, found.digest)\n"
        "except CheckpointError as error:\n"
        "    print(error)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = kept | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": str(int(offline)),
        "NO_PROXY": "127.0.0.1",
    }
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize("revision", [[], ["v1"], [COMMIT]])
def test_a_repository_is_pinned_to_its_commit(hub, folder, tmp_path, revision):
    from encoder.checkpoint import describe_checkpoint

    printed = describe_remote(hub, tmp_path / "home", "owner/name", *revision)
    assert printed == f"{COMMIT} {describe_checkpoint(folder).digest}"
    weights = [path for path in hub.RequestHandlerClass.requests if path.endswith("safetensors")]
    assert weights
    assert all(COMMIT in path for path in weights)


def test_a_cached_repository_is_found_offline(hub, folder, tmp_path):
    online = describe_remote(hub, tmp_path / "home", "owner/name")
    assert describe_remote(hub, tmp_path / "home", "owner/name", offline=True) == online
    shutil.rmtree(tmp_path / "home")
    message = describe_remote(hub, tmp_path / "home", "owner/name", offline=True)
    assert "must be reachable or in the local cache; config.json is neither" in message


def test_a_sharded_repository_is_downloaded_whole(hub, folder, tmp_path):
    from safetensors.numpy import load, save

    files = hub.RequestHandlerClass.files
    weights = load(files.pop("model.safetensors"))
    names = list(weights)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for file, members in parts.items():
        files[file] = save({name: weights[name] for name in members})
    weight_map = {name: file for file, members in parts.items() for name in members}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    online = describe_remote(hub, tmp_path / "home", "owner/name")
    assert online.startswith(COMMIT)
    assert describe_remote(hub, tmp_path / "home", "owner/name", offline=True) == online


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["owner/other"], "'owner/other' must be a folder or a repository that can be read"),
        (["owner/name", "v9"], "must be a branch, tag or commit of owner/name, found 'v9'"),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub, tmp_path, arguments, message):
    assert message in describe_remote(hub, tmp_path / "home", *arguments)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("config.json", "owner/name at its default branch must hold config.json, found no such"),
        ("model.safetensors", "found only pickle files in owner/name at 0123456789abcdef"),
    ],
)
def test_a_repository_without_the_needed_files_is_named(hub, tmp_path, gone, message):
    files = hub.RequestHandlerClass.files
    files["pytorch_model.bin"] = files.pop(gone)
    assert message in describe_remote(hub, tmp_path / "home", "owner/name")
