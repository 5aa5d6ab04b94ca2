"""Every file of the corpora: patches or a rejection, within bounds of time and memory, in silence.

The folder is EMBEDMILL_CORPORA, else ../shared/corpora beside the repository.
"""

import io
import json
import os
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from encoder.geometry import Geometry
from pipeline.config import PreprocessConfig
from pipeline.decode import decode
from pipeline.errors import SampleError
from pipeline.image_header import probe
from pipeline.preprocess import prepare, resolve_kernel
from pipeline.records import RawSample, RejectReason, SampleId

CORPORA = Path(
    os.environ.get("EMBEDMILL_CORPORA", Path(__file__).parents[3] / "shared" / "corpora")
)
FOLDERS = ("photos", "hard", "broken")
DROP = PreprocessConfig(background="drop")
GEOMETRY = Geometry(patch_size=16, max_num_patches=256)
SCALED_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # where Pillow's convert clips

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPORA.is_dir(), reason=f"no corpora in {CORPORA}"),
]


def entries(folder):
    with open(CORPORA / folder / "INDEX.jsonl") as index:
        for line in index:
            entry = json.loads(line)
            yield entry, (CORPORA / folder / entry["path"]).read_bytes()


def check_detail(detail):
    assert detail.isprintable()
    assert not any(part in detail for part in (str(CORPORA), "object at", "/tmp"))


def outcome(name, data):
    sample = RawSample(
        id=SampleId(shard="file:///s.tar", key=name), index=0, member=name, image=data
    )
    try:
        patched = prepare(
            sample, PreprocessConfig(), geometry=GEOMETRY, kernel=resolve_kernel("auto")
        )
    except SampleError as error:
        check_detail(error.detail)
        return error.reason
    h, w = patched.grid
    assert patched.pixel_values.shape == (h * w, 768)
    return None


def by_pillow(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.load()
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except Exception:  # noqa: BLE001 - whatever the file makes it raise
            return None


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_patches_or_a_rejection(folder, capfd):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes, slowest = Counter(), (0.0, "")
    for entry, data in entries(folder):
        start = time.perf_counter()
        outcomes[outcome(entry["path"], data)] += 1
        slowest = max(slowest, (time.perf_counter() - start, entry["path"]))
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert capfd.readouterr() == ("", "")
    assert slowest[0] < 10, slowest
    assert grown_mib < 1024
    if folder == "photos":
        assert outcomes == {None: 175}
    with capfd.disabled():
        reasons = {str(reason or "patches"): count for reason, count in outcomes.items()}
        print(f"\n{folder}: {reasons}, slowest {slowest}, {grown_mib:.0f} MiB", file=sys.stderr)


@pytest.mark.parametrize("folder", FOLDERS)
def test_pixels_are_pillows_but_for_the_rules(folder):
    """Alpha apart (dropped here) and 16 bits apart, the bytes are those of convert("RGB")."""
    compared = 0
    for entry, data in entries(folder):
        expected = by_pillow(data)
        try:
            found = decode(data, DROP)
        except SampleError:
            continue
        header = probe(data, DROP)
        assert (header.height, header.width) == found.source_size, entry["path"]
        if expected is None or header.mode in SCALED_MODES:
            continue
        np.testing.assert_array_equal(found.pixels, expected, err_msg=entry["path"])
        compared += 1
    assert compared >= {"photos": 175, "hard": 500, "broken": 75}[folder]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_pillow_opens_is_rejected_only_for_a_reason(folder):
    """A closed list: formats that are not enabled, and one JPEG whose pixels are missing."""
    rejected = Counter()
    for _, data in entries(folder):
        try:
            decode(data, DROP)
        except SampleError as error:
            if by_pillow(data) is not None:
                rejected[error.reason] += 1
    assert set(rejected) <= {RejectReason.UNSUPPORTED_FORMAT, RejectReason.TRUNCATED_IMAGE}
    assert rejected[RejectReason.UNSUPPORTED_FORMAT] <= 9
    assert rejected[RejectReason.TRUNCATED_IMAGE] <= 1
