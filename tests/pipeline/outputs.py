"""Output folders made by the real writer from vectors at hand, without images and encoder."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq

from encoder.batch import PackedBatch
from encoder.geometry import Geometry
from encoder.output import Readout
from pipeline.config import RunConfig
from pipeline.manifest import ModelFacts, embeddings_url, make_fingerprint, open_run
from pipeline.records import (
    EmbeddingBlock,
    End,
    Pack,
    Rejection,
    RejectReason,
    RowInfo,
    SampleId,
    ShardReport,
)
from pipeline.storage import Storage
from pipeline.tables import embeddings_schema
from pipeline.writer import Lease, ShardWriter

WIDTH = 8
MODEL = ModelFacts(
    checkpoint="seeded",
    revision=None,
    digest="d" * 64,
    geometry=Geometry(patch_size=16, max_num_patches=256),
    readout=Readout(
        vectors="pooled",
        states=(2,),
        norm_after=2,
        normalize=True,
        dtype="float32",
        width=WIDTH,
    ),
)


class Output:
    """One output folder and what a test puts there. Shards are s3://in/<name>.tar."""

    def __init__(self, path: str, *, inputs: Sequence[str] = (), **sections) -> None:
        shards = [shard_id(name) for name in inputs] or ["s3://in/unknown.tar"]
        raw = {"input": {"shards": shards}, "output": {"path": path, "dtype": "float32"}}
        self.config = RunConfig.model_validate(raw | {"model": {"checkpoint": "seeded"}} | sections)
        self.path = path
        self.storage = Storage(self.config.storage)
        wanted = self.config.output
        readout = replace(
            MODEL.readout, vectors=wanted.vectors, normalize=wanted.normalize, dtype=wanted.dtype
        )
        model = replace(MODEL, readout=readout)
        self.fingerprint = make_fingerprint(self.config, model, "torch")
        open_run(self.storage, path, self.config, model, self.fingerprint)

    def urls(self) -> set[str]:
        """Everything that is there, relative to the folder."""
        found = self.storage.list(self.path)
        return {info.url.removeprefix(f"{self.path}/") for info in found} - {"_run.json"}

    def read(self, name: str) -> pq.ParquetFile:
        data = self.storage.read(embeddings_url(self.path, shard_id(name)))
        return pq.ParquetFile(io.BytesIO(data))

    def publish(self, name, keys=("k0", "k1", "k2"), *, rejects=None, **options) -> str:
        """The attempt. `rejects` are reasons by key; they come after the rows in the tar."""
        with self.writer(name) as writer:
            end = self.fill(writer, name, keys, rejects or {}, **options)
            writer.publish(end)
            return writer._lease.attempt

    def leave_rejects(self, name, rejects) -> str:
        """The attempt of a writer that was killed between its rejects and its embeddings."""
        created = []

        class KilledError(Exception):
            pass

        def create(url, source):
            if "/embeddings/" in url:
                raise KilledError
            created.append(url)
            return Storage.create(self.storage, url, source)

        with self.writer(name) as writer:
            end = self.fill(writer, name, ("k0",), rejects)
            self.storage.create = create
            try:
                writer.publish(end)
            except KilledError:
                return writer._lease.attempt
            finally:
                del self.storage.create
        raise AssertionError("it was published")

    def writer(self, name: str) -> ShardWriter:
        footer = {"fingerprint": self.fingerprint.sha, "digest": MODEL.digest, "kernel": "torch"}
        return ShardWriter(
            lease=Lease(url=shard_id(name)),
            storage=self.storage,
            output=self.path,
            schema=embeddings_schema(self.config, WIDTH),
            footer=footer | {"checkpoint": MODEL.checkpoint, "revision": None, "versions": {}},
        )

    def fill(self, writer, name, keys, rejects, *, vectors=None, complete=True) -> End:
        """The End of a shard whose samples the writer now has."""
        if keys:
            writer.add(*self.pack(name, 0, *keys, vectors=vectors))
        items = [
            Rejection(
                id=SampleId(shard=shard_id(name), key=key),
                index=len(keys) + number,
                reason=RejectReason(reason),
                detail="on purpose",
                member=f"{key}.jpg",
            )
            for number, (key, reason) in enumerate(rejects.items())
        ]
        writer.reject(items)
        return self.end(name, read=len(keys) + len(items), embedded=len(keys), complete=complete)

    def pack(self, name, first_index, *keys, vectors=None) -> tuple[Pack, EmbeddingBlock]:
        ids = tuple(SampleId(shard=shard_id(name), key=key) for key in keys)
        if vectors is None:
            vectors = unit_vectors(len(ids), seed=f"{name}{first_index}")
        rows = tuple(
            RowInfo(index=first_index + number, truncated=False, metadata={})
            for number in range(len(ids))
        )
        block = EmbeddingBlock(ids=ids, vectors=vectors, seconds=0.0, passes=1.0)
        return Pack(batch=make_batch(ids), rows=rows), block

    def end(self, name, *, read, embedded, complete=True) -> End:
        report = ShardReport(
            shard=shard_id(name),
            read=read,
            embedded=embedded,
            tokens=embedded,
            rejected={},
            skipped={},
            warnings={},
            bytes_read=1000,
            seconds={},
        )
        return End(report=report, size=1000, etag='"1"', complete=complete)


def shard_id(name: str) -> str:
    return f"s3://in/{name}.tar"


def unit_vectors(count: int, *, seed: str = "") -> np.ndarray:
    rng = np.random.default_rng(list(seed.encode()))
    vectors = rng.standard_normal((count, WIDTH)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_batch(ids: tuple[SampleId, ...]) -> PackedBatch:
    """A pack of one-patch images."""
    shapes = np.ones((len(ids), 2), dtype=np.int64)
    return PackedBatch(
        pixel_values=np.zeros((len(ids), 768), dtype=np.uint8),
        spatial_shapes=shapes,
        cu_seqlens=np.arange(len(ids) + 1, dtype=np.int32),
        source_sizes=shapes * 16,
        ids=ids,
    )
