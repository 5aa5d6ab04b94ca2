"""What is wrong with vectors is found where it was put."""

import numpy as np
import pytest

from pipeline.report_health import measure_health


def random_vectors(count, width, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def test_planted_near_duplicates_are_found_and_no_others():
    vectors = random_vectors(3000, 64)  # several blocks
    noise = 0.01 * random_vectors(3, 64, seed=1)
    vectors[2990] = vectors[10] + noise[0]
    vectors[1500] = vectors[10] + noise[1]
    vectors[77] = 3.0 * vectors[76]  # length does not matter
    health = measure_health(vectors)
    assert health.groups == [[10, 1500, 2990], [76, 77]]
    assert health.in_groups == 5


def test_a_chain_of_small_steps_is_no_group():
    angles = np.deg2rad(np.arange(0, 180, 4.0))
    vectors = np.zeros((len(angles), 8), np.float32)
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    health = measure_health(vectors)
    assert 2 <= max(map(len, health.groups)) < len(angles) / 2
    for group in health.groups:
        assert (vectors[group] @ vectors[group[0]] >= health.near - 1e-6).all()


def test_the_spectrum_is_that_of_a_known_covariance():
    width, variances = 16, np.array([8.0, 4.0, 2.0, 1.0])
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    rotation = np.linalg.qr(random_vectors(width, width))[0][:4]
    vectors = np.concatenate([signs, -signs]) * np.sqrt(variances) @ rotation + 5.0
    health = measure_health(vectors.astype(np.float32))
    np.testing.assert_allclose(health.spectrum[:4], variances / 15, rtol=1e-4)
    np.testing.assert_allclose(health.spectrum[4:], 0, atol=1e-6)
    assert [health.components_for(share) for share in (0.5, 0.75, 0.9, 1.0)] == [1, 2, 3, 4]
    entropy = -(variances / 15 * np.log(variances / 15)).sum()
    assert health.effective_rank == pytest.approx(np.exp(entropy), rel=1e-3)


def test_both_shapes_of_matrix_have_the_same_spectrum():
    few, many = random_vectors(20, 50), random_vectors(90, 50)
    for vectors in (few, many):
        centred = vectors - vectors.mean(axis=0)
        expected = np.linalg.svd(centred, compute_uv=False) ** 2
        found = measure_health(vectors).spectrum
        count = min(vectors.shape)
        np.testing.assert_allclose(found[:count], expected / expected.sum(), atol=1e-6)


def test_neighbours_are_the_nearest_ones():
    vectors = random_vectors(200, 32)
    health = measure_health(vectors, queries=3)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert list(health.neighbours) == [0, 99, 199]
    for row, near in health.neighbours.items():
        cosines = units @ units[row]
        order = [other for other in np.argsort(-cosines).tolist() if other != row]
        assert [other for other, _ in near] == order[:5]
        np.testing.assert_allclose([c for _, c in near], cosines[order[:5]], atol=1e-6)


def test_vectors_that_are_no_vectors_are_told_and_left_out():
    vectors = random_vectors(50, 8)
    vectors[3, 2] = np.nan
    vectors[7] = np.inf
    vectors[9] = 0
    vectors[:, 5] = 0.25
    health = measure_health(vectors)
    assert health.not_finite == 2
    assert health.constant == 1
    seen = {row for near in health.neighbours.values() for row, _ in near}
    assert not seen & {3, 7, 9}


def test_lengths_and_collapsed_vectors():
    vectors = np.full((40, 6), 2.0, np.float32)
    health = measure_health(vectors)
    np.testing.assert_allclose(health.norms, np.sqrt(24))
    assert health.spectrum.size == 0
    assert health.effective_rank == 0
    assert health.groups == [list(range(40))]
    assert measure_health(vectors[:1]) is None
    assert measure_health(vectors[:0]) is None
