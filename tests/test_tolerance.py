"""Policies of tolerance: floor(p * n), the fixed baseline, and the phase-aware schedule step by step."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.tolerance import POLICIES, Fixed, PhaseAware, Random, Reliable, allowed_missing

LOW, HIGH = 0.008, 0.408


@given(st.integers(0, 999), st.integers(1, 200_000))
def test_allowed_missing_is_the_floor_of_the_decimal_product(per_mille: int, chunks: int) -> None:
    assert allowed_missing(per_mille / 1000, chunks) == math.floor(Fraction(per_mille, 1000) * chunks)


def test_allowed_missing_of_whole_products_that_binary_fractions_miss() -> None:
    assert int(0.29 * 100) == 28
    assert allowed_missing(0.29, 100) == 29
    assert allowed_missing(0.0, 10**6) == 0
    assert allowed_missing(0.4, 1) == 0


def test_fixed_and_reliable_ignore_the_gradient() -> None:
    fixed, reliable = Fixed(0.024), Reliable()
    for step, norm in enumerate([1.0, 100.0, math.nan, 0.0]):
        fixed.observe(step, norm)
        reliable.observe(step, norm)
        assert (fixed.tolerance, fixed.in_clr, reliable.tolerance) == (0.024, False, 0.0)


def trace(policy: PhaseAware, norms: list[float]) -> str:
    """C where the policy is in a CLR after the step, - where not."""
    marks = []
    for step, norm in enumerate(norms):
        policy.observe(step, norm)
        assert policy.tolerance == (policy.low if policy.in_clr else policy.high)
        marks.append("C" if policy.in_clr else "-")
    return "".join(marks)


def test_training_starts_critical_and_leaves_at_the_first_quiet_detection() -> None:
    policy = PhaseAware(LOW, HIGH, eta=0.5, frequency=3)
    assert (policy.tolerance, policy.in_clr) == (LOW, True)
    # The change at step 4 goes unseen: only the steps that `frequency` divides look, each at the step before it.
    assert trace(policy, [1.0, 1.0, 1.0, 1.1, 9.0, 9.0, 9.5]) == "CCC----"


def test_a_change_of_eta_at_a_detection_is_critical_until_the_next() -> None:
    assert trace(PhaseAware(LOW, HIGH, 0.5, 2), [1, 1, 1, 1, 2, 2, 2, 2]) == "CC--CC--"
    assert trace(PhaseAware(LOW, HIGH, 0.5, 2), [1, 1, 0.5, 1, 1]) == "CCCC-"      # exactly eta, downwards
    assert trace(PhaseAware(LOW, HIGH, 0.5, 1), [1, 1.49, 2.3]) == "C-C"


@pytest.mark.parametrize(
    ("previous", "current", "critical"),
    [(0.0, 0.0, False), (0.0, 1e-9, True), (1.0, math.nan, True), (1.0, math.inf, True), (math.inf, 1.0, True)],
)
def test_norms_at_the_edge_of_arithmetic(previous: float, current: float, critical: bool) -> None:
    assert trace(PhaseAware(LOW, HIGH, 0.5, 1), [previous, current])[-1] == ("C" if critical else "-")


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60), st.integers(1, 7), st.floats(0.05, 3))
def test_the_regime_only_changes_at_detections(norms: list[float], frequency: int, eta: float) -> None:
    policy = PhaseAware(LOW, HIGH, eta, frequency)
    marks = "C" + trace(policy, norms)
    for step in range(len(norms)):
        if step % frequency:
            assert marks[step + 1] == marks[step]
        elif step:
            critical = abs(norms[step - 1] - norms[step]) >= eta * norms[step - 1]
            assert marks[step + 1] == ("C" if critical and norms[step] != norms[step - 1] else "-")


def test_random_regimes_come_with_their_probability_and_last_until_the_next_draw() -> None:
    marks = trace(Random(LOW, HIGH, 0.3, frequency=4, seed=3), [1.0] * 4001)
    drawn = marks[4::4]
    assert 0.25 < drawn.count("C") / len(drawn) < 0.35
    assert marks[:4] == "CCCC"
    assert all(len(set(marks[step : step + 4])) == 1 for step in range(4, 4000, 4))
    assert trace(Random(LOW, HIGH, 0.3, frequency=4, seed=3), [9.0] * 4001) == marks
    assert set(trace(Random(LOW, HIGH, 0, frequency=1), [1.0] * 50)[1:]) == {"-"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(1.0), "p is 1.0; a tolerance is a fraction"),
        (lambda: Fixed(-0.1), "p is -0.1"),
        (lambda: Fixed(math.nan), "p is nan"),
        (lambda: PhaseAware(0.1, 40.8), "high is 40.8"),
        (lambda: PhaseAware(0.5, 0.1), r"low \(0.5\) exceeds high \(0.1\)"),
        (lambda: PhaseAware(0.1, 0.5, eta=0), r"eta \(0\) must be positive"),
        (lambda: PhaseAware(0.1, 0.5, frequency=0), r"frequency \(0\) at least 1"),
        (lambda: Random(0.5, 0.1, 0.5), r"low \(0.5\) exceeds high \(0.1\)"),
        (lambda: Random(0.1, 0.5, 1.5), r"probability \(1.5\) lies in"),
    ],
)
def test_bad_numbers_are_named(make, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        make()


def test_policies_by_name() -> None:
    assert {"fixed": Fixed, "phase_aware": PhaseAware, "random": Random, "reliable": Reliable} == POLICIES
