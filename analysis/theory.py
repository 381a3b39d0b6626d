"""What passes, bytes and latency should be, by arithmetic alone: docs/theory.md derives it.

A gradient of n frames may leave at most floor(p n) of them missing. Every frame of every pass is lost with
probability q, independently. Shares (p, q) lie in [0, 1); without ``frames`` the laws are those of a very large n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from protocol.tolerance import allowed_missing

_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Passes:
    """Distribution of the number of whole passes: its mean and standard deviation."""

    mean: float
    deviation: float


def passes_ratio(p: float, q: float) -> float:
    """ln p / ln q, at least 1: the n for which q^n = p. NaN for p = 0, where the number of frames decides."""
    if q <= 0:
        return 1.0
    return max(1.0, math.log(p) / math.log(q)) if p > 0 else math.nan


def passes(p: float, q: float, frames: int) -> Passes:
    """Whole passes until at most floor(p n) frames are missing, exactly.

    After m passes the number of missing frames is binomial (n, q^m), so more than m passes are needed with the
    probability of its upper tail; sums of tails are moments.
    """
    tails = list(_tails(p, q, frames))
    mean = sum(tails)
    square = sum((2 * m + 1) * tail for m, tail in enumerate(tails))
    return Passes(mean, math.sqrt(max(square - mean**2, 0.0)))


def _tails(p: float, q: float, frames: int) -> Iterator[float]:
    """Probability that m passes do not suffice, for m = 0, 1, ... until it is negligible."""
    allowed, m = allowed_missing(p, frames), 0
    while (tail := float(stats.binom.sf(allowed, frames, q**m))) > _NEGLIGIBLE:
        yield tail
        m += 1


def frames_sent(p: float, q: float, frames: int | None = None) -> float:
    """Frames sent, hence bytes, per frame of the model: (1 - p) / (1 - q).

    Each frame sent is one that was missing and arrives with probability 1 - q: a negative binomial, whose mean is exact
    as long as STOP ends the sending at once.
    """
    needed = 1 - p if frames is None else 1 - allowed_missing(p, frames) / frames
    return needed / (1 - q) if q < 1 else math.inf


def passes_walked(p: float, q: float, frames: int | None = None) -> float:
    """Passes, the last one counted only as far as it goes until STOP: what a cost per pass is paid for.

    A pass that finds a share s missing brings s (1 - q) and is needed up to (s - p) / (s (1 - q)) of its length.
    """
    if frames is None:
        walked, missing = 0.0, 1.0
        while missing * q > p:
            walked, missing = walked + 1, missing * q
            if p == 0 and missing < _NEGLIGIBLE:
                return math.inf
        return walked + (missing - p) / (missing * (1 - q)) if missing > p else walked
    allowed, walked = allowed_missing(p, frames), 0.0
    for m, _ in enumerate(_tails(p, q, frames)):
        law = stats.binom(frames, q**m)
        low = max(allowed + 1, int(law.ppf(_NEGLIGIBLE)))
        found = np.arange(low, max(low, int(law.isf(_NEGLIGIBLE))) + 1)
        part = np.minimum((found - allowed) / (found * (1 - q)), 1)
        walked += float((law.pmf(found) * part).sum())
    return walked


def floor(p: float, q: float, workers: int, send_time: float, frames: int | None = None) -> float:
    """Least time of a phase of the central reduce (s), the loss q lying behind each worker's own link.

    A worker's link carries all frames sent, the server's link what arrives of every worker; the busier one decides.
    ``send_time`` is the time one link needs for the whole model once.
    """
    return send_time * max(frames_sent(p, q, frames), workers * frames_sent(p, 0, frames))


def latency(
    p: float, q: float, workers: int, send_time: float, pass_cost: float = 0.0, frames: int | None = None
) -> float:
    """Send latency (s) where each pass costs ``pass_cost`` (s) besides its frames.

    While one sender pauses the others use the server's link, so the pauses add to the sender's own time only.
    """
    own = send_time * frames_sent(p, q, frames)
    if pass_cost:
        own += pass_cost * passes_walked(p, q, frames)
    return max(own, send_time * workers * frames_sent(p, 0, frames))


def polling_cost(frames: int, poll_every: int, poll_wait: float) -> float:
    """What a pass of a polling sender costs (s): a wait after each stretch of chunks, all of them walked."""
    return poll_wait * math.ceil(frames / poll_every)


def burst_speedup(cost: float, q: float, low: float, high: float, workers: int = 3) -> float:
    """Latency with tolerance ``low`` over that with ``high`` in a burst of loss q.

    ``cost`` is the per-pass cost divided by the time to send the model once.
    """
    return latency(low, q, workers, 1.0, cost) / latency(high, q, workers, 1.0, cost)


def average_speedup(
    cost: float, q: float, low: float, high: float, workers: int = 3, bursts: float = 0.0, critical: float = 0.0
) -> float:
    """Mean latency with ``low`` throughout, over that of a phase-aware transport.

    ``bursts`` is the share of iterations under loss q, ``critical`` the share of the others in the CLR.
    """
    calm, loss = (lambda p: latency(p, 0.0, workers, 1.0, cost)), (lambda p: latency(p, q, workers, 1.0, cost))
    fixed = (1 - bursts) * calm(low) + bursts * loss(low)
    aware = (1 - bursts) * ((1 - critical) * calm(high) + critical * calm(low)) + bursts * loss(high)
    return fixed / aware


def cost_of(speedup: float, q: float, low: float, high: float, workers: int = 3) -> float:
    """The cost at which ``burst_speedup`` has a value: where on its axis a measured burst lies.

    Infinite beyond what passes alone can give, 0 below what frames alone give.
    """
    def excess(exponent: float) -> float:
        return burst_speedup(10**exponent, q, low, high, workers) - speedup

    if excess(-6) >= 0:
        return 0.0
    return math.inf if excess(6) <= 0 else 10 ** optimize.brentq(excess, -6, 6)
