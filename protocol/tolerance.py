"""How much of a gradient may stay missing, step by step.

A policy is one class with `tolerance`, `in_clr` and `observe`, and one line in `POLICIES`.
"""

from __future__ import annotations

import math
import random
from typing import Protocol

from protocol.errors import LocalProtocolError


class ToleranceSchedule(Protocol):
    """The loss tolerance p in force, in [0, 1), and whether the model is in a critical learning regime (CLR)."""

    tolerance: float
    in_clr: bool

    def observe(self, step: int, gradient_norm: float) -> None:
        """Take the L2 norm of the averaged gradient of `step` (from 0) and set what holds from now on."""


def allowed_missing(tolerance: float, chunks: int) -> int:
    """The most chunks of `chunks` that may stay missing: floor(p * n).

    The small addend keeps a product that is whole in decimal (0.29 * 100) from falling to the next lower integer in
    binary.
    """
    return math.floor(tolerance * chunks + 1e-9)


def _fraction(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise LocalProtocolError(f"{name} is {value}; a tolerance is a fraction in [0, 1)")
    return value


def _bounds(low: float, high: float) -> tuple[float, float]:
    if _fraction("low", low) > _fraction("high", high):
        raise LocalProtocolError(f"low ({low}) exceeds high ({high}); the CLR is where less may be lost")
    return low, high


class Fixed:
    """One tolerance throughout: MLT in software, the paper's baseline (section V-A3)."""

    in_clr = False

    def __init__(self, p: float) -> None:
        self.tolerance = _fraction("p", p)

    def observe(self, step: int, gradient_norm: float) -> None:
        pass


class Reliable(Fixed):
    """Everything arrives."""

    def __init__(self) -> None:
        super().__init__(0.0)


class PhaseAware:
    """DBLP: `low` inside a CLR, `high` outside (sections III-B, IV-D; Algorithm 3, lines 9 to 14).

    Starts at `low`, since the start of training is critical. At every step that `frequency` divides, the tolerance goes
    back to `high`, and to `low` if the norm changed by `eta` or more against the step before. Step 0 has no step
    before it, so the first regime lasts until step `frequency`.

    Args:
        low: P_low.
        high: P_high.
        eta: relative change of the gradient norm that makes a regime critical (section IV-E: 0.5).
        frequency: steps between detections, and how long a regime lasts.
    """

    def __init__(self, low: float, high: float, eta: float = 0.5, frequency: int = 10) -> None:
        self.low, self.high = _bounds(low, high)
        if eta <= 0 or frequency < 1:
            raise LocalProtocolError(f"eta ({eta}) must be positive and frequency ({frequency}) at least 1")
        self.eta, self.frequency = eta, frequency
        self.tolerance, self.in_clr = self.low, True
        self._previous: float | None = None

    def observe(self, step: int, gradient_norm: float) -> None:
        previous, self._previous = self._previous, gradient_norm
        if step % self.frequency or previous is None:
            return
        # A previous norm of 0 makes the relative change infinite: any gradient at all is then a critical change.
        change = abs(previous - gradient_norm)
        self.in_clr = not math.isfinite(gradient_norm) or (change > 0 and change >= self.eta * previous)
        self.tolerance = self.low if self.in_clr else self.high


class Random:
    """The control of `PhaseAware`: regimes of the same length that begin by chance, whatever training does.

    Args:
        low: tolerance inside a drawn regime, and until the first draw at step `frequency`.
        high: tolerance outside.
        probability: of a regime at each draw.
        frequency: steps between draws.
        seed: of the draws.
    """

    def __init__(self, low: float, high: float, probability: float, frequency: int = 10, seed: int = 0) -> None:
        self.low, self.high = _bounds(low, high)
        if not 0 <= probability <= 1 or frequency < 1:
            raise LocalProtocolError(f"probability ({probability}) lies in [0, 1], frequency ({frequency}) from 1 on")
        self.probability, self.frequency = probability, frequency
        self.tolerance, self.in_clr = self.low, True
        self._random = random.Random(seed)

    def observe(self, step: int, gradient_norm: float) -> None:
        if step == 0 or step % self.frequency:
            return
        self.in_clr = self._random.random() < self.probability
        self.tolerance = self.low if self.in_clr else self.high


POLICIES = {"fixed": Fixed, "phase_aware": PhaseAware, "random": Random, "reliable": Reliable}
