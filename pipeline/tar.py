"""The members of a tar archive as a stream, with an end that is proven.

Read: ustar, GNU and PAX archives, old V7 ones, and several archives in a row. An archive is whole
when every announced byte came and two zero blocks followed the last member. Nothing else counts:
a file without that mark may have been cut exactly between two members, and its size says nothing,
because the size of a cut file is the size that storage reports.

Python's tarfile ends its iteration without an error at 2,560 of the 12,287 places where a small
archive was cut; it also stops at the first end mark, and what `cat` put behind it is lost.
"""

from collections.abc import Iterator
from typing import NoReturn

from pipeline.compression import ByteSource, TruncatedError
from pipeline.errors import ShardError
from pipeline.tar_header import (
    BLOCK,
    HeaderError,
    Member,
    check_block,
    long_name,
    looks_like,
    parse_member,
    pax_records,
    size_field,
)

_ZEROS = bytes(BLOCK)
MAX_HEADER_BYTES = 8 << 20  # a PAX or GNU long-name header; honest ones have a few hundred bytes
MAX_PADDING_BYTES = 1 << 20  # zeros behind an archive; tar's usual record is 10 KiB


class TarReader:
    """Iterates over the members of one stream; `read_data` gives the bytes of the current one.

    Data that is not read is passed over in chunks. Raises TruncatedError where the stream ends
    early, ShardError where a header is not one.
    """

    def __init__(self, source: ByteSource) -> None:
        self.joined = 0  # archives that followed the first one
        self._source = source
        self._data_left = 0  # of the current member
        self._extended: dict[str, bytes] = {}  # about the next member
        self._global: dict[str, bytes] = {}  # about all members that follow

    def __iter__(self) -> Iterator[Member]:
        while block := self._next_block():
            try:
                member = self._parse(block)
            except HeaderError as error:
                self._fail(str(error))
            if member is not None:
                self._data_left = member.size
                yield member
                self._finish(member)

    def read_data(self) -> bytes:
        """The data of the current member; empty the second time."""
        data = self._source.take(self._data_left)
        self._data_left -= len(data)
        return data

    def _finish(self, member: Member) -> None:
        """Passes over what was not read, and over the padding."""
        self._data_left -= self._source.skip(self._data_left)
        if self._data_left:
            self._fail_cut(
                f"it ends in member {member.name!r}, {member.size - self._data_left:,} of its "
                f"{member.size:,} bytes are there"
            )
        self._source.skip(-member.size % BLOCK)

    def _next_block(self) -> bytes:
        """The next block that is not zeros; empty behind the end mark of the last archive."""
        zero_blocks = 0
        while (block := self._source.take(BLOCK)) == _ZEROS:
            zero_blocks += 1
            if self._extended:
                self._fail("an extended header is followed by no member")
            if zero_blocks * BLOCK > MAX_PADDING_BYTES:
                self._fail_cut(
                    f"more than {MAX_PADDING_BYTES >> 20} MiB of zeros are where a header must be, "
                    f"as in a file that was allocated before an unfinished download"
                )
        if len(block) < BLOCK:
            self._check_end(block, zero_blocks)
            return b""
        self.joined += zero_blocks > 0
        return block

    def _check_foreign(self, start: bytes) -> None:
        if self._source.position == len(start) and (kind := looks_like(start)):
            self._fail(f"it looks like {kind}")

    def _check_end(self, rest: bytes, zero_blocks: int) -> None:
        self._check_foreign(rest)
        if any(rest):
            self._fail_cut("it ends in a header" if zero_blocks < 2 else "it ends in stray bytes")
        if self._source.position == 0:
            self._fail_cut("it is empty, without even the end-of-archive mark")
        if zero_blocks < 2:
            self._fail_cut(
                "it has no end-of-archive mark (two blocks of zeros): it was cut between two "
                "members, or its writer was never closed, which looks the same"
            )

    def _parse(self, block: bytes) -> Member | None:
        """The member that a header announces; None for a header about the next member."""
        try:
            check_block(block)
        except HeaderError:
            self._check_foreign(block)
            raise
        flag = block[156:157]
        if flag in (b"x", b"X", b"g", b"L", b"K"):
            self._extend(flag, self._header_data(size_field(block)))
            return None
        if flag == b"S":
            self._skip_sparse_map(block)
        records = {**self._global, **self._extended}
        self._extended = {}
        return parse_member(block, records)

    def _extend(self, flag: bytes, data: bytes) -> None:
        """Keeps what an extended header says; the first of several about one member wins."""
        if flag == b"g":
            self._global.update(pax_records(data))
        elif flag == b"L":
            self._extended.setdefault("path", long_name(data))
        elif flag != b"K":  # the name of a link's target
            self._extended = {**pax_records(data), **self._extended}

    def _header_data(self, size: int) -> bytes:
        if size > MAX_HEADER_BYTES:
            self._fail(
                f"an extended header must have {MAX_HEADER_BYTES:,} bytes at most, found {size:,}"
            )
        padded = size + -size % BLOCK
        data = self._source.take(padded)
        if len(data) < padded:
            self._fail_cut("it ends in an extended header")
        return data[:size]

    def _skip_sparse_map(self, block: bytes) -> None:
        more = block[482]
        while more:
            extension = self._source.take(BLOCK)
            if len(extension) < BLOCK:
                self._fail_cut("it ends in the map of a sparse file")
            more = extension[504]

    def _fail(self, message: str) -> NoReturn:
        place = f"{message} (before byte {self._source.position:,})"
        raise ShardError(f"not a whole tar archive: {place}", self._source.shard)

    def _fail_cut(self, message: str) -> NoReturn:
        place = f"{message} (at byte {self._source.position:,})"
        raise TruncatedError(f"the tar is truncated: {place}", self._source.shard)
