"""What moves through the stage, one frozen type for each step.

Letters as in encoder.batch: N images in a pack, T patches in a pack, P values in a patch, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from encoder.batch import PackedBatch

Value = str | int | float | bool | None  # a metadata cell; nested JSON travels as JSON text


class RejectReason(StrEnum):
    """Why an image has no row. The set is closed: docs/formats.md explains each."""

    NO_IMAGE = "no_image"  # a sample whose members are all something else
    SEVERAL_IMAGES = "several_images"  # two images under one key, often a dotted name
    DUPLICATE_KEY = "duplicate_key"  # the key came before: a double or a sample torn apart
    EMPTY_IMAGE = "empty_image"
    TOO_MANY_BYTES = "too_many_bytes"
    TOO_MANY_PIXELS = "too_many_pixels"
    UNKNOWN_FORMAT = "unknown_format"  # no image format that is known, or not an image
    UNSUPPORTED_FORMAT = "unsupported_format"  # known, named, but not decoded here
    TRUNCATED_IMAGE = "truncated_image"
    DECODE_ERROR = "decode_error"
    DECODE_TIMEOUT = "decode_timeout"
    DECODER_CRASHED = "decoder_crashed"
    MISSING_METADATA = "missing_metadata"  # a required field is absent or unreadable
    NON_FINITE = "non_finite"  # the encoder returned NaN or infinity for this image


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleId:
    shard: str  # canonical shard id: absolute URL without query and user info
    key: str  # the tar's key, never a counter

    def __str__(self) -> str:
        return f"{self.key!r} in {self.shard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    id: SampleId
    index: int  # position of the sample in its shard, rejected ones counted too
    member: str  # name of the image member in the tar
    image: bytes
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedImage:
    id: SampleId
    index: int
    pixel_values: NDArray[np.uint8]  # [h * w, P], patches row-major, channel fastest
    grid: tuple[int, int]  # (h, w) in patches
    source_size: tuple[int, int]  # (height, width) px, after EXIF orientation
    truncated: bool = False  # part of the file was missing; preprocess.truncated_images accepts it
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    id: SampleId
    index: int
    reason: RejectReason
    detail: str  # one line: member name, format found, decoder's message; no paths
    member: str = ""

    def __str__(self) -> str:
        return f"{self.id}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInfo:
    """What the output needs of an image besides its vector and its grid."""

    index: int
    truncated: bool
    metadata: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBlock:
    ids: tuple[SampleId, ...]  # [N], same order and length as the pack
    vectors: NDArray[np.floating]  # [N, D]; [T, D] where the output is tokens
    seconds: float  # of the encoder's time
    passes: float  # its share of the forward passes that it was in, by tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What was read from one shard.

    `embedded` and `rejected` are what the reading half knows: images that it packed, and images
    that it turned down.
    """

    shard: str
    read: int
    embedded: int
    tokens: int  # of the packed images
    rejected: Mapping[str, int]  # by RejectReason value
    skipped: Mapping[str, int]  # members that are no sample: directories, links, resource forks
    warnings: Mapping[str, int]
    bytes_read: int
    seconds: Mapping[str, float]  # by phase
    passes: float = (
        0.0  # forward passes that held the packed images; 0.25 of one shared with others
    )
    examples: Mapping[str, str] = field(default_factory=dict)  # one rejection by reason, as text

    @property
    def balanced(self) -> bool:
        return self.read == self.embedded + sum(self.rejected.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Stream item: one pack and, for each of its images, what the output needs."""

    batch: PackedBatch
    rows: tuple[RowInfo, ...]  # [N]
    seconds: Mapping[str, float] = field(default_factory=dict)  # of its stream so far, by phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """Stream item: rejections since the last one."""

    items: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Last stream item. Without it nothing is published."""

    report: ShardReport
    size: int  # bytes of the shard object
    etag: str | None
    complete: bool = True  # False: truncated, published because on_truncated is keep


StreamItem = Pack | Rejections | End
