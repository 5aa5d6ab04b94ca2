"""Shards that were given up: one small JSON object each, removed when the shard succeeds later."""

import json
from datetime import UTC, datetime

from pipeline.manifest import FAILED, failed_url
from pipeline.storage import Storage


class Quarantine:
    """The failed/ folder of an output. One listing at the start tells which markers are there."""

    def __init__(self, storage: Storage, output: str) -> None:
        self._storage, self._output = storage, output
        self._there = {info.url for info in storage.list(f"{output}/{FAILED}/")}

    def add(self, shard: str, *, cause: str, attempts: int) -> None:
        """None; leaves a marker with the last error, over an older one."""
        url = failed_url(self._output, shard)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"shard": shard, "error": cause, "attempts": attempts, "time": now}
        self._storage.put(url, json.dumps(record, indent=2).encode())
        self._there.add(url)

    def release(self, shard: str) -> None:
        """None; removes the marker of a shard that succeeded."""
        url = failed_url(self._output, shard)
        if url in self._there:
            self._storage.delete(url)
            self._there.discard(url)
