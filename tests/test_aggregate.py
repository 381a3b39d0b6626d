"""The mean over workers and its norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.aggregate import l2_norm, mean_zero_filled


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


@pytest.mark.parametrize("size", [1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_norm_over_block_borders(size: int) -> None:
    vector = np.random.default_rng(size).standard_normal(size, np.float32)
    assert l2_norm(vector) == pytest.approx(np.linalg.norm(vector.astype(np.float64)), rel=1e-5)


def test_norm_of_gradients_that_have_diverged_is_not_finite() -> None:
    assert not np.isfinite(l2_norm(np.array([1, np.nan], np.float32)))
    assert l2_norm(np.array([np.inf], np.float32)) == np.inf
    assert l2_norm(np.zeros(10, np.float32)) == 0
