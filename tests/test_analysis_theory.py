"""Theory against simulation, its limits, and its inverses."""

from __future__ import annotations

import math

import analysis_tree as tree
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import theory

LOW, HIGH = 0.008, 0.408


@settings(derandomize=True, deadline=None, max_examples=25)
@given(p=st.floats(0.01, 0.6), q=st.floats(0.1, 0.8), seed=st.integers(0, 2**32 - 1))
def test_passes_and_frames_are_those_of_simulated_rounds(p: float, q: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rounds = [tree.one_round(rng, p, q) for _ in range(60)]
    law = theory.passes(p, q, tree.FRAMES)
    mean = np.mean([passes for passes, _, _ in rounds])
    assert mean == pytest.approx(law.mean, abs=5 * law.deviation / math.sqrt(60) + 1e-6)
    sent = np.mean([sent for _, sent, _ in rounds]) / tree.FRAMES
    assert sent == pytest.approx(theory.frames_sent(p, q, tree.FRAMES), rel=0.02)


def test_whole_passes_where_the_ratio_of_logarithms_is_not_one() -> None:
    assert theory.passes_ratio(LOW, 0.7) == pytest.approx(13.54, abs=0.01)
    assert theory.passes(LOW, 0.7, 11_045).mean == pytest.approx(14.0, abs=0.1)
    assert theory.passes(HIGH, 0.7, 11_045).mean == pytest.approx(3.0, abs=1e-6)
    assert theory.passes(HIGH, 0.7, 11_045).deviation == pytest.approx(0, abs=1e-3)


def test_nothing_may_be_missing() -> None:
    assert math.isnan(theory.passes_ratio(0, 0.7))
    # The largest of n geometric numbers: about ln n / -ln q.
    assert theory.passes(0, 0.5, 1024).mean == pytest.approx(11.3, abs=0.1)
    assert theory.passes_walked(0, 0.5) == math.inf
    assert 10 < theory.passes_walked(0, 0.5, 1024) < theory.passes(0, 0.5, 1024).mean


def test_without_loss() -> None:
    assert theory.passes_ratio(LOW, 0) == 1
    assert theory.passes(LOW, 0, 1000).mean == 1
    assert theory.frames_sent(HIGH, 0) == pytest.approx(0.592)
    assert theory.passes_walked(HIGH, 0) == pytest.approx(0.592)
    assert theory.frames_sent(HIGH, 1) == math.inf


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.2), (HIGH, 0.7), (LOW, 0.5)])
def test_passes_walked_lie_between_and_a_finite_number_of_frames_changes_little(p: float, q: float) -> None:
    walked = theory.passes_walked(p, q)
    assert theory.passes(p, q, 100_000).mean - 1 <= walked <= theory.passes(p, q, 100_000).mean
    assert theory.passes_walked(p, q, 100_000) == pytest.approx(walked, rel=0.01)


def test_the_floor_is_the_busier_link() -> None:
    assert theory.floor(0, 0, 3, 0.1) == pytest.approx(0.3)            # the server's
    assert theory.floor(0, 0.5, 3, 0.1) == pytest.approx(0.3)
    assert theory.floor(0, 0.75, 3, 0.1) == pytest.approx(0.4)         # a worker's, which carries every frame 4 times
    assert theory.latency(LOW, 0.7, 3, 0.1) == theory.floor(LOW, 0.7, 3, 0.1)


def test_a_cost_per_pass_is_hidden_behind_the_servers_link_until_it_is_not() -> None:
    calm = theory.latency(0, 0, 3, 0.1)
    assert theory.latency(0, 0, 3, 0.1, pass_cost=0.1) == calm
    assert theory.latency(0, 0, 3, 0.1, pass_cost=0.5) == pytest.approx(0.6)
    assert theory.polling_cost(11_045, 100, 1e-3) == pytest.approx(0.111)


def test_the_two_ends_of_the_burst_speedup() -> None:
    assert theory.burst_speedup(0, 0.7, LOW, HIGH) == pytest.approx((1 - LOW) / (1 - HIGH))
    assert theory.burst_speedup(1e6, 0.7, LOW, HIGH) == pytest.approx(
        theory.passes_walked(LOW, 0.7) / theory.passes_walked(HIGH, 0.7), rel=1e-4)
    grid = [theory.burst_speedup(x, 0.7, LOW, HIGH) for x in np.logspace(-3, 3, 30)]
    assert grid == sorted(grid)


def test_the_average_speedup_does_not_depend_on_the_cost_of_a_pass() -> None:
    for cost in (0, 1, 100):
        assert theory.average_speedup(cost, 0.7, LOW, HIGH) == pytest.approx((1 - LOW) / (1 - HIGH))
    assert theory.average_speedup(0, 0.7, LOW, HIGH, critical=1) == 1
    assert theory.average_speedup(1, 0.7, LOW, HIGH, bursts=0.1) > 1.68


def test_cost_of_inverts_the_burst_speedup() -> None:
    for cost in (0.01, 0.8, 30):
        speedup = theory.burst_speedup(cost, 0.7, LOW, HIGH)
        assert theory.cost_of(speedup, 0.7, LOW, HIGH) == pytest.approx(cost, rel=1e-3)
    assert theory.cost_of(1.5, 0.7, LOW, HIGH) == 0
    assert theory.cost_of(6, 0.7, LOW, HIGH) == math.inf
