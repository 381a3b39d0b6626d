"""In which order chunks are sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.order import ORDERS, ByNorm, Rotating


@given(st.sampled_from(sorted(ORDERS)), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_every_order_has_each_chunk_once(name: str, chunks: int, round_: int) -> None:
    values = np.random.default_rng(round_).standard_normal((chunks, 5)).astype(np.float32)
    order = ORDERS[name](chunks)(round_, values)
    assert np.sort(np.arange(chunks) if order is None else order).tolist() == list(range(chunks))


def test_rotation_is_the_same_for_all_and_for_both_rounds_of_a_step() -> None:
    values = np.zeros((100, 1), np.float32)
    first, other = Rotating(100), Rotating(100)
    for round_ in (0, 2, 4, 2**32 - 2):
        order = first(round_, values).tolist()
        assert order == other(round_ + 1, values).tolist()
        assert order == [(order[0] + place) % 100 for place in range(100)]


def test_rotation_leaves_every_chunk_out_about_as_often() -> None:
    rotating, left_out = Rotating(1000), np.zeros(1000)
    for step in range(200):
        left_out[rotating(2 * step, np.zeros((1000, 1), np.float32))[592:]] += 1
    assert (left_out.min(), left_out.max()) == pytest.approx((81.6, 81.6), abs=3)


def test_large_chunks_first_and_what_is_not_a_number_before_them() -> None:
    values = np.array([[1, 1], [0, -3], [0, 0], [np.nan, 0], [-2, 1], [np.inf, 0]], np.float32)
    assert ByNorm(6)(0, values).tolist() == [3, 5, 1, 4, 0, 2]
