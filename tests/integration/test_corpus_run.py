"""All files of the corpora in shards with their own names, through a whole run."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.conftest import (
    CORPORA,
    embedmill,
    footer,
    read_rejects,
    read_rows,
    write_shard,
)

FOLDERS = ("photos", "hard", "broken")
DOCS = Path(__file__).parents[2] / "docs"
DECODING = {"decode_error", "truncated_image", "too_many_pixels", "unsupported_format"}

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CORPORA.is_dir(), reason=f"no corpora in {CORPORA}"),
]


def names(folder):
    with open(CORPORA / folder / "INDEX.jsonl") as index:
        return [json.loads(line)["path"] for line in index]


def decided_file_by_file():
    with open(DOCS / "corpus.csv", newline="") as file:
        return {line["file"]: line["outcome"] for line in csv.DictReader(file)}


def test_every_file_is_a_row_or_a_reject(write_config, tmp_path):
    for folder in FOLDERS:
        members = {name: (CORPORA / folder / name).read_bytes() for name in names(folder)}
        write_shard(tmp_path / "shards" / f"{folder}.tar", members)
    config = write_config(
        input={"key_split": "last_dot"}, workers={"preprocessors": {"min": 2, "max": 2}}
    )
    run = embedmill("run", config)
    assert run.returncode == 0, run.stderr
    rows, rejects = read_rows(tmp_path / "out"), read_rejects(tmp_path / "out")
    counted = Counter((row["shard"], row["index"]) for row in rows + rejects)
    assert set(counted.values()) == {1}
    accounted = {(row["shard"], row["key"]) for row in rows + rejects}
    footers = {f["shard"]: f for f in map(footer, (tmp_path / "out" / "embeddings").iterdir())}
    for folder in FOLDERS:
        shard = f"file://{tmp_path}/shards/{folder}.tar"
        stems = {name.rpartition(".")[0] for name in names(folder)}
        without_dot = [name for name in names(folder) if "." not in name]
        assert {key for found, key in accounted if found == shard} == stems - {""}
        assert footers[shard]["skipped"] == (
            {"no_extension": len(without_dot)} if without_dot else {}
        )
    assert {row["shard"][-9:] for row in rejects} == {"/hard.tar", "roken.tar"}
    decisions = decided_file_by_file()
    for reject in rejects:
        if (member := reject["member"]) and reject["reason"] in DECODING:
            assert decisions[member] == reject["reason"], member
    assert len(rows) > 750
