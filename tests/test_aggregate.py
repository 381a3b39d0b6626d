"""The mean over workers and its norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.aggregate import l2_norm, mean_of_contributors, mean_zero_filled


@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_mean_over_all_workers(workers: int, size: int, seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((workers, size)).astype(np.float32)
    untouched = gradients.copy()
    out = np.full(size, np.nan, np.float32)
    mean_zero_filled(list(gradients), out)
    np.testing.assert_allclose(out, gradients.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(gradients, untouched)


def test_a_missing_chunk_counts_as_zero_and_still_divides_by_all() -> None:
    out = np.empty(2, np.float32)
    mean_zero_filled([np.array([3, 3], np.float32), np.array([0, 3], np.float32), np.array([0, 3], np.float32)], out)
    assert out.tolist() == [1.0, 3.0]


@given(st.integers(1, 6), st.integers(1, 300), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_mean_of_each_chunk_over_those_that_contributed(workers: int, size: int, chunk: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrived = random.random((workers, -(-size // chunk))) < 0.6
    here = np.repeat(arrived, chunk, axis=1)[:, :size]
    gradients = np.where(here, random.standard_normal((workers, size)), 0).astype(np.float32)
    out = np.full(size, np.nan, np.float32)
    mean_of_contributors(list(gradients), out, list(arrived), chunk)
    counts = here.sum(axis=0)
    expected = np.divide(gradients.sum(axis=0, dtype=np.float64), counts, out=np.zeros(size), where=counts > 0)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_both_means_agree_where_nothing_is_missing() -> None:
    gradients = np.random.default_rng(1).standard_normal((3, 1000)).astype(np.float32)
    plain, contributed = np.empty((2, 1000), np.float32)
    mean_zero_filled(list(gradients), plain)
    mean_of_contributors(list(gradients), contributed, [np.ones(10, bool)] * 3, 100)
    np.testing.assert_array_equal(plain, contributed)


@pytest.mark.parametrize("size", [1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_norm_over_block_borders(size: int) -> None:
    vector = np.random.default_rng(size).standard_normal(size, np.float32)
    assert l2_norm(vector) == pytest.approx(np.linalg.norm(vector.astype(np.float64)), rel=1e-5)


def test_norm_of_gradients_that_have_diverged_is_not_finite() -> None:
    assert not np.isfinite(l2_norm(np.array([1, np.nan], np.float32)))
    assert l2_norm(np.array([np.inf], np.float32)) == np.inf
    assert l2_norm(np.zeros(10, np.float32)) == 0
