"""Action `loss`: random, correlated, and the two Markov chains of tc-netem(8).

All of them are one chain of at most four states. For each datagram it moves, and the new state gives the probability of
a loss. netem takes the probability of `gemodel` before it moves, which is the same process one datagram later.
"""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.events import LossEvent
from testbed.bursts.actions import percent

STATES = 4


@dataclass(frozen=True)
class Chain:
    """How datagrams are lost.

    Attributes:
        moves: [from][to], probabilities; each row sums to 1.
        losses: of each state.
        correlation: of a draw with the last one, as netem has it: v = (1 - c) u + c v', u uniform.
    """

    moves: tuple[tuple[float, ...], ...] = ((1.0, 0.0, 0.0, 0.0),) * STATES
    losses: tuple[float, ...] = (0.0,) * STATES
    correlation: float = 0.0


NO_LOSS = Chain()
ALL_LOST = Chain(losses=(1.0,) * STATES)


def chain(event: LossEvent) -> Chain:
    """The chain of an event."""
    if event.loss is not None:
        return Chain(losses=(event.loss,) * STATES, correlation=event.correlation)
    start = (1.0, 0.0, 0.0, 0.0)
    if (ge := event.gemodel) is not None:
        moves = ((1 - ge.p, ge.p, 0.0, 0.0), (ge.r, 1 - ge.r, 0.0, 0.0), start, start)
        return Chain(moves, (ge.good, ge.bad, 0.0, 0.0))
    s = event.state
    moves = (
        (1 - s.p13 - s.p14, 0.0, s.p13, s.p14),
        (0.0, 1 - s.p23, s.p23, 0.0),
        (s.p31, s.p32, 1 - s.p31 - s.p32, 0.0),
        start,
    )
    return Chain(moves, (0.0, 0.0, 1.0, 1.0))


def netem(event: LossEvent) -> dict[str, list[str]]:
    if event.loss is not None:
        return {"loss": ["loss", percent(event.loss), percent(event.correlation)]}
    if (ge := event.gemodel) is not None:
        return {"loss": ["loss", "gemodel", *map(percent, (ge.p, ge.r, ge.bad, ge.good))]}
    s = event.state
    return {"loss": ["loss", "state", *map(percent, (s.p13, s.p31, s.p32, s.p23, s.p14))]}


def bpf_problem(event: LossEvent) -> str | None:
    return None


def local_problem(event: LossEvent) -> str | None:
    if event.protocol == "udp":
        return None
    return "protocol 'all' also loses TCP segments, which engine local has no link for"
