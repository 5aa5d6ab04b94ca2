"""The samples of one shard: tar members grouped by key, each group an image or a rejection.

The grouping is WebDataset's: members in a row with one key are one sample. What its rule merges,
tears apart or repeats is a Rejection with a reason, never a silent loss.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.compression import ByteSource, Readable, TruncatedError
from pipeline.config import InputConfig, PreprocessConfig
from pipeline.errors import ShardError
from pipeline.keys import is_image, is_meta_key, printable, skip_reason, split_name
from pipeline.metadata import MAX_METADATA_BYTES, read_columns
from pipeline.ranged import RangedReader
from pipeline.records import RawSample, Rejection, RejectReason, SampleId
from pipeline.tar import TarReader
from pipeline.tar_header import Member


@dataclass(slots=True, kw_only=True)
class _Group:
    """The members of one sample so far; holds one image and the chosen metadata at most."""

    key: str
    repeated: bool  # the key came before
    members: int = 0
    images: int = 0
    image_member: str = ""
    image_size: int = 0
    image: bytes = b""
    second_image: str = ""
    texts: dict[str, bytes | None] = field(default_factory=dict)  # None: too large to read


def stored_samples(
    stream: RangedReader, inputs: InputConfig, preprocess: PreprocessConfig
) -> "ShardSamples":
    """The samples of a shard that storage opened."""
    return ShardSamples(
        stream,
        shard=stream.info.url,
        config=inputs,
        size=stream.info.size,
        max_image_bytes=preprocess.max_image_bytes,
    )


class ShardSamples:
    """Yields the samples of one shard in tar order, rejected ones as Rejection; iterate once.

    Raises ShardError where the archive is cut or corrupt; with on_truncated "keep" a cut ends the
    iteration instead and `complete` is False. What was yielded before an error is not to be used.
    """

    def __init__(
        self,
        stream: Readable,
        *,
        shard: str,
        config: InputConfig,
        size: int | None,
        max_image_bytes: int,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.complete = True
        self._stream = stream
        self._shard = shard
        self._config = config
        self._size = size
        self._max_image_bytes = max_image_bytes
        self._image_suffixes = frozenset(config.image_extensions)
        self._wanted = frozenset(column.member.lower() for column in config.metadata)
        self._seen: set[int] = set()
        self._open: _Group | None = None
        self._index = 0

    def __iter__(self) -> Iterator[RawSample | Rejection]:
        source = ByteSource(self._stream, self._shard)
        try:
            yield from self._samples(TarReader(source))
            self._check_size(source)
        except TruncatedError:
            if source.ended:
                self._check_size(source)  # a stream that broke off is no cut file
            if self._config.on_truncated == "fail":
                raise
            self.complete = False
            self.warnings["truncated"] += 1
            if self._open is not None:
                # Dropped also where the cut lies just behind one of its members: the sample may
                # have had more of them.
                self.warnings["cut_sample"] += 1

    def _check_size(self, source: ByteSource) -> None:
        if self._size is not None and source.consumed != self._size:
            raise ShardError(
                f"storage says the shard has {self._size:,} bytes, {source.consumed:,} were read",
                self._shard,
            )

    def _samples(self, tar: TarReader) -> Iterator[RawSample | Rejection]:
        for member in tar:
            place = self._place(member)
            if place is None:
                continue
            key, suffix = place
            group = self._open
            if group is None or key != group.key or member.name == group.image_member:
                yield from self._finish()
                group = self._open = _Group(key=key, repeated=self._was_seen(key))
            self._add(group, member, suffix, tar)
        yield from self._finish()
        if tar.joined:
            self.warnings["joined_archives"] = tar.joined

    def _place(self, member: Member) -> tuple[str, str] | None:
        """Key and suffix of a member of a sample; anything else is counted."""
        reason = member.kind if member.kind != "file" else skip_reason(member.name)
        if reason is None:
            place = split_name(member.name, self._config.key_split)
            if place is not None:
                return place
            reason = "no_extension"
        self.skipped[reason] += 1
        return None

    def _was_seen(self, key: str) -> bool:
        """Whether the key came before in this shard.

        Eight bytes of a hash stand for a key, about 100 bytes of memory a sample, 1 MB for 10,000.
        Two keys that share them (a chance of 1 in 37 million in a shard of a million samples) cost
        a rejection, never a silent loss.
        """
        data = key.encode("utf-8", "surrogateescape")
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
        if digest in self._seen:
            return True
        self._seen.add(digest)
        return False

    def _add(self, group: _Group, member: Member, suffix: str, tar: TarReader) -> None:
        group.members += 1
        if is_image(suffix, self._image_suffixes):
            group.images += 1
            if group.images == 1:
                group.image_member, group.image_size = member.name, member.size
                if member.size <= self._max_image_bytes and not group.repeated:
                    group.image = tar.read_data()
            elif group.images == 2:
                group.second_image, group.image = member.name, b""
        elif suffix in self._wanted and not group.repeated:
            if suffix in group.texts:
                self.warnings["duplicate_member"] += 1
            else:
                fits = member.size <= MAX_METADATA_BYTES
                group.texts[suffix] = tar.read_data() if fits else None

    def _finish(self) -> Iterator[RawSample | Rejection]:
        """Yields the item of the group that is open; none where there is none to account for."""
        group, self._open = self._open, None
        if group is None:
            return
        if group.images == 0 and is_meta_key(group.key):
            self.skipped["meta"] += group.members
            return
        index, self._index = self._index, self._index + 1
        id_ = SampleId(shard=self._shard, key=printable(group.key))
        member = printable(group.image_member)
        fault = self._fault(group)
        columns = read_columns(self._config.metadata, group.texts)
        if fault is None and columns.required:
            fault = RejectReason.MISSING_METADATA, columns.required
        if fault is not None:
            reason, detail = fault
            yield Rejection(id=id_, index=index, reason=reason, detail=detail, member=member)
            return
        self.warnings.update(["missing_metadata"] * len(columns.missing))
        self.warnings.update(["bad_metadata"] * len(columns.bad))
        yield RawSample(
            id=id_, index=index, member=member, image=group.image, metadata=columns.values
        )

    def _fault(self, group: _Group) -> tuple[RejectReason, str] | None:
        member = printable(group.image_member)
        if group.repeated:
            return RejectReason.DUPLICATE_KEY, (
                "the key came before in this shard; members of one sample must be adjacent "
                "(pack with tar --sort=name) and names must not repeat"
            )
        if group.images == 0:
            return RejectReason.NO_IMAGE, f"none of its {group.members} members is an image"
        if group.images > 1:
            return RejectReason.SEVERAL_IMAGES, (
                f"{group.images} image members share the key, {member} and "
                f"{printable(group.second_image)} first; if dots in their names belong to the key, "
                f"set input.key_split: last_dot; if one of them is the image of the sample, name "
                f"its extension in input.image_extensions"
            )
        if group.image_size == 0:
            return RejectReason.EMPTY_IMAGE, f"{member} has no bytes"
        if group.image_size > self._max_image_bytes:
            return RejectReason.TOO_MANY_BYTES, (
                f"{member} has {group.image_size:,} bytes, more than "
                f"preprocess.max_image_bytes ({self._max_image_bytes:,})"
            )
        return None
