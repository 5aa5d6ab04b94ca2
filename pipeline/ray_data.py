"""The two halves of the stage as classes for Ray Data's `map_batches`, or for any loop over tables.

Give both `batch_format="pyarrow"`. Rows stay rows: an image that cannot be used keeps its row, with
the reason in `reject_reason` and `reject_detail` and null in the columns that it has no value for.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from encoder.batch import PackMismatchError
from encoder.checkpoint import describe_checkpoint
from encoder.infer import load_encoder
from encoder.output import Output
from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.packing import group_images, make_pack
from pipeline.preprocess import prepare, resolve_kernel
from pipeline.records import PatchedImage, RawSample, RejectReason, SampleId

_PREPARED = {
    "pixel_values": pa.large_binary(),  # uint8 [h * w, P], row-major
    "grid_h": pa.int32(),
    "grid_w": pa.int32(),
    "height": pa.int32(),
    "width": pa.int32(),
    "reject_reason": pa.string(),
    "reject_detail": pa.string(),
}
_POOLED = Output()


class PrepareImages:
    """Image files in, patches out, for CPUs."""

    def __init__(
        self,
        checkpoint: str,
        *,
        image: str = "bytes",
        preprocess: Mapping[str, Any] | None = None,
        revision: str | None = None,
    ) -> None:
        """`image` names the column with the bytes of image files.

        `preprocess` holds the keys of that section of a run's configuration.
        """
        self._image = image
        self._config = PreprocessConfig(**(preprocess or {}))
        described = describe_checkpoint(checkpoint, revision=revision)
        self._geometry = described.geometry(max_num_patches=self._config.max_num_patches)
        self._kernel = resolve_kernel(self._config.resize_kernel)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table without its image column, and with the columns of patches.

        These are pixel_values, grid_h, grid_w, height, width, reject_reason and reject_detail.
        Raises ValueError where the image column is missing, or the table has one of the others.
        """
        if self._image not in table.column_names:
            raise ValueError(
                f"a column {self._image!r} must hold the images, found {table.column_names}. Name "
                f"it with image=..."
            )
        if taken := sorted(_PREPARED.keys() & set(table.column_names)):
            raise ValueError(f"the columns {taken} are written here: rename or drop them before")
        images = table.column(self._image)
        rows = [self._row(index, value.as_py()) for index, value in enumerate(images)]
        table = table.drop_columns([self._image])
        for name, kind in _PREPARED.items():
            table = table.append_column(name, pa.array([row.get(name) for row in rows], kind))
        return table

    def _row(self, index: int, image: bytes | None) -> dict[str, Any]:
        if image is None:
            return _rejected(RejectReason.NO_IMAGE, "null")
        sample = RawSample(id=_row_id(index), index=index, member="", image=image)
        try:
            patched = prepare(sample, self._config, geometry=self._geometry, kernel=self._kernel)
        except SampleError as error:
            return _rejected(error.reason, error.detail)
        return {
            "pixel_values": patched.pixel_values.tobytes(),
            **dict(zip(("grid_h", "grid_w"), patched.grid, strict=True)),
            **dict(zip(("height", "width"), patched.source_size, strict=True)),
        }


class EncodeImages:
    """Patches in, vectors out, for a GPU or a CPU."""

    def __init__(
        self,
        checkpoint: str,
        *,
        output: Output = _POOLED,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        token_budget: int = 16_384,
    ) -> None:
        """Takes what `encoder.infer.load_encoder` takes.

        The rows of a batch are encoded in packs of at most `token_budget` tokens: let a batch hold
        several times as many.
        """
        self._encoder = load_encoder(
            checkpoint, revision=revision, output=output, device=device, dtype=dtype
        )
        self._token_budget = token_budget

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table without pixel_values, and with a column of vectors.

        That is `embedding`, or `tokens` where the output is tokens, null for rejected images; those
        whose values are not finite are rejected here. Raises PackMismatchError where pixel_values
        and grids disagree.
        """
        rows = table.select(list(_PREPARED)).to_pylist()
        groups = group_images(
            (self._patched(index, row) for index, row in enumerate(rows) if row["pixel_values"]),
            token_budget=self._token_budget,
            look_ahead=len(rows),
        )
        packs = [make_pack(group) for group in groups]
        vectors: dict[int, np.ndarray[Any, Any]] = {}
        tokens = self._encoder.readout.vectors == "tokens"
        batches = [pack.batch for pack in packs]
        for pack, found in zip(packs, self._encoder.submit(batches).results(), strict=True):
            ends = pack.batch.cu_seqlens[1:-1] if tokens else np.arange(1, len(found))
            for place, values in enumerate(np.split(found, ends)):
                index = pack.rows[place].index
                if np.isfinite(values).all():
                    vectors[index] = values
                else:
                    detail = self._encoder.explain(pack.batch, place)
                    rows[index] |= _rejected(RejectReason.NON_FINITE, detail)
        for name in ("reject_reason", "reject_detail"):
            column = pa.array([row[name] for row in rows], pa.string())
            table = table.set_column(table.column_names.index(name), name, column)
        name = "tokens" if tokens else "embedding"
        column = self._column(vectors, len(rows), tokens=tokens)
        return table.drop_columns(["pixel_values"]).append_column(name, column)

    def _patched(self, index: int, row: Mapping[str, Any]) -> PatchedImage:
        pixels = np.frombuffer(row["pixel_values"], dtype=np.uint8)
        h, w, values = row["grid_h"], row["grid_w"], self._encoder.config.patch_values
        if pixels.size != h * w * values:
            raise PackMismatchError(
                f"pixel_values must hold grid_h x grid_w patches of {values} values each, "
                f"{h} x {w} x {values} = {h * w * values} bytes in row {index} of the batch, found "
                f"{pixels.size}. Prepare images with the checkpoint that encodes them."
            )
        return PatchedImage(
            id=_row_id(index),
            index=index,
            pixel_values=pixels.reshape(-1, values),
            grid=(h, w),
            source_size=(row["height"], row["width"]),
        )

    def _column(
        self, vectors: Mapping[int, np.ndarray[Any, Any]], count: int, *, tokens: bool
    ) -> pa.Array:
        readout = self._encoder.readout
        kind = pa.list_(pa.from_numpy_dtype(np.dtype(readout.dtype)), readout.width)
        order = sorted(vectors)
        none = np.zeros(0, dtype=readout.dtype)
        flat = np.concatenate([none, *(vectors[index].ravel() for index in order)])
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(flat.astype(readout.dtype, copy=False)), type=kind
        )
        if tokens:
            lengths = [len(vectors[index]) for index in order]
            column = pa.ListArray.from_arrays(np.cumsum([0, *lengths], dtype=np.int32), column)
        places = {index: place for place, index in enumerate(order)}
        return column.take(pa.array([places.get(index) for index in range(count)], pa.int64()))


def _row_id(index: int) -> SampleId:
    return SampleId(shard="the batch", key=f"row {index}")


def _rejected(reason: RejectReason, detail: str) -> dict[str, Any]:
    return {"reject_reason": reason.value, "reject_detail": detail}
