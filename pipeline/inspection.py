"""What would happen to images, told without a model: `embedmill inspect`."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from encoder.geometry import Geometry
from pipeline.config import InputConfig, PackingConfig, PreprocessConfig
from pipeline.errors import ConfigError, SampleError, ShardError
from pipeline.image_header import ImageHeader, probe
from pipeline.keys import skip_reason
from pipeline.packing import group_images
from pipeline.preprocess import prepare
from pipeline.records import PatchedImage, RawSample, Rejection, SampleId
from pipeline.resize import resolve_kernel
from pipeline.shards import stored_samples
from pipeline.specs import list_shards
from pipeline.storage import Storage, canonical_url

_SHARD_SUFFIXES = (".tar", ".tgz", ".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One image: its grid, or why it has none."""

    source: str  # shard or file
    key: str
    header: ImageHeader | None  # None where not even that can be read
    grid: tuple[int, int] | None
    reason: str = ""
    detail: str = ""

    @property
    def tokens(self) -> int:
        return 0 if self.grid is None else self.grid[0] * self.grid[1]


@dataclass(slots=True, kw_only=True)
class Summary:
    """All findings in sum; filled while `inspect_images` is iterated."""

    images: int = 0
    tokens: Counter[int] = field(default_factory=Counter)  # images by number of tokens
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)  # members that are no sample
    warnings: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # shards that cannot be read whole
    packs: int = 0
    packed_tokens: int = 0
    token_budget: int = 0

    @property
    def fill(self) -> float:
        """Share of the budget of all packs that holds tokens; the last pack of a shard is one."""
        return self.packed_tokens / (self.packs * self.token_budget) if self.packs else 0.0


def inspect_images(
    paths: Iterable[str],
    *,
    inputs: InputConfig,
    preprocess: PreprocessConfig,
    packing: PackingConfig,
    geometry: Geometry,
    storage: Storage,
    summary: Summary,
) -> Iterator[Finding]:
    """Yields a Finding for each image of shards, folders and image files; counts in `summary`.

    Every image is decoded, resized and cut as in a run. Raises ConfigError for a path that is none.
    """
    work = partial(
        prepare,
        config=preprocess,
        geometry=geometry,
        kernel=resolve_kernel(preprocess.resize_kernel),
    )
    summary.token_budget = packing.token_budget
    for path in paths:
        if os.path.isdir(path):
            files = sorted(p for p in Path(path).rglob("*") if p.is_file())
            sources: list[Iterator[RawSample | Rejection]] = [_files(files)]
        elif _is_image_file(path):
            sources = [_files([Path(path)])]
        else:
            named = inputs.model_copy(update={"shards": path, "shards_file": None})
            shards = list_shards(named, storage)
            sources = [_shard(url, inputs, preprocess, storage, summary) for url in shards]
        for samples in sources:
            yield from _measure(samples, work, preprocess, packing, summary)


def _measure(
    samples: Iterable[RawSample | Rejection],
    work: "partial[PatchedImage]",
    preprocess: PreprocessConfig,
    packing: PackingConfig,
    summary: Summary,
) -> Iterator[Finding]:
    findings: list[Finding] = []
    images = _patched(samples, work, preprocess, findings)
    groups = group_images(images, token_budget=packing.token_budget, look_ahead=packing.look_ahead)
    for group in groups:
        summary.packs += 1
        summary.packed_tokens += sum(len(image.pixel_values) for image in group)
        yield from _told(findings, summary)
    yield from _told(findings, summary)


def _told(findings: list[Finding], summary: Summary) -> Iterator[Finding]:
    for finding in findings:
        summary.images += 1
        if finding.grid is None:
            summary.rejected[finding.reason] += 1
        else:
            summary.tokens[finding.tokens] += 1
        yield finding
    findings.clear()


def _patched(
    samples: Iterable[RawSample | Rejection],
    work: "partial[PatchedImage]",
    preprocess: PreprocessConfig,
    findings: list[Finding],
) -> Iterator[PatchedImage]:
    for sample in samples:
        found = partial(Finding, source=sample.id.shard, key=sample.id.key)
        if isinstance(sample, Rejection):
            told = {"reason": sample.reason.value, "detail": sample.detail}
            findings.append(found(header=None, grid=None, **told))
            continue
        header = None
        try:
            header = probe(sample.image, preprocess)
            image = work(sample)
        except SampleError as error:
            told = {"reason": error.reason.value, "detail": error.detail}
            findings.append(found(header=header, grid=None, **told))
        else:
            findings.append(found(header=header, grid=image.grid))
            yield image


def _shard(
    url: str, inputs: InputConfig, preprocess: PreprocessConfig, storage: Storage, summary: Summary
) -> Iterator[RawSample | Rejection]:
    shard = canonical_url(url)
    with storage.open(url) as stream:
        samples = stored_samples(stream, inputs, preprocess)
        try:
            yield from samples
        except ShardError as error:
            summary.failed[shard] = error.message
        summary.skipped.update(samples.skipped)
        summary.warnings.update(samples.warnings)


def _files(paths: Iterable[Path]) -> Iterator[RawSample | Rejection]:
    for index, path in enumerate(path for path in paths if skip_reason(path.name) is None):
        yield RawSample(
            id=SampleId(shard=canonical_url(str(path.parent)), key=path.name),
            index=index,
            member=path.name,
            image=path.read_bytes(),
        )


def _is_image_file(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as stream:
        start = stream.read(512)
    is_tar = start[257:262] == b"ustar" or path.lower().endswith(_SHARD_SUFFIXES)
    if not start and not is_tar:
        raise ConfigError(f"{path} is empty: inspect takes shards, image files and folders")
    return not is_tar
