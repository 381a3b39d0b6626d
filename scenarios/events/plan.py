"""The plan of a run: windows of whole iterations, spells of time, and whether any of them meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from scenarios.events.union import Event
from scenarios.topology import Topology
from scenarios.units import Seconds

MEETINGS_LOOKED_FOR = 10_000  # of two periodic spells; at `every: 5s`, of the first 14 hours


class Window(NamedTuple):
    """The iterations from `start` up to, not including, `stop` in which `Scenario.events[event]` is active."""

    event: int
    start: int
    stop: int


class Spell(NamedTuple):
    """A stretch of time in which `Scenario.events[event]` is active.

    It begins with an iteration, or `time` s after all hosts were ready for the first one; the other is None. With a
    `period`, one begins every so many seconds from then on, to the end of the run.
    """

    event: int
    iteration: int | None
    time: float | None
    seconds: float
    period: float | None = None

    def meets(self, other: Spell) -> float | None:
        """Time (s) at which this one and another are both active for the first time; None if that never happens.

        Both begin by the clock. Of two that come again and again, the first `MEETINGS_LOOKED_FOR` of this one are
        looked at; who runs longer than that lets the later one count.
        """
        first, step, length = map(_microseconds, (self.time, self.period or 0, self.seconds))
        start, period, span = map(_microseconds, (other.time, other.period or 0, other.seconds))
        for number in range(MEETINGS_LOOKED_FOR if step else 1):
            begin = first + number * step
            # The first of the other's that ends after `begin`.
            skipped = max(0, (begin - span - start) // period + 1) if period else 0
            theirs = start + skipped * period
            if begin - span < theirs < begin + length:
                return max(begin, theirs) / 1e6
            if not period and theirs + span <= begin:
                return None
        return None


def _microseconds(seconds: float) -> int:
    """Whole, so that sums of times are exact."""
    return round(seconds * 1e6)


def windows(events: Sequence[Event], iterations: int) -> list[Window]:
    """Of the events over whole iterations, sorted by start. The last windows of `every` end with the run."""
    found = [
        Window(index, start, min(start + event.span, iterations))
        for index, event in enumerate(events)
        if not isinstance(event.span, Seconds)
        for start in event.starts(iterations)
    ]
    return sorted(found, key=lambda window: (window.start, window.event))


def spells(events: Sequence[Event], iterations: int) -> list[Spell]:
    """Of the events that last a time: those that begin with an iteration in their order, then those by the clock."""
    timed = [(index, event) for index, event in enumerate(events) if isinstance(event.span, Seconds)]
    by_iteration = [
        Spell(index, start, None, float(event.span)) for index, event in timed for start in event.starts(iterations)
    ]
    by_clock = [
        Spell(index, None, clock.time, float(event.span), clock.period)
        for index, event in timed
        if (clock := event.at.clock())
    ]
    return [
        *sorted(by_iteration, key=lambda spell: (spell.iteration, spell.event)),
        *sorted(by_clock, key=lambda spell: (spell.time, spell.event)),
    ]




def overlaps(events: Sequence[Event], topology: Topology, iterations: int) -> dict[tuple[int, int], str]:
    """(earlier event, later event) -> message, where two would set the same on one link or host at one time.

    Windows of iterations are compared with each other, and so are times; whether an iteration and a time meet shows in
    the run alone, where the later one counts.
    """
    clashes: dict[tuple[int, int], str] = {}

    def clash(one: int, other: int, place: tuple[str, ...], when: str) -> None:
        earlier, later = sorted((one, other))
        _, host, direction = place
        where = f"on the link of {host} {direction}" if direction else f"on {host}"
        message = f"overlaps events.{earlier} {where} {when}; move one of them, or write one event for both"
        clashes.setdefault((earlier, later), message)

    last: dict[tuple[str, ...], Window] = {}
    for window in windows(events, iterations):
        for place in sorted(events[window.event].places(topology)):
            if place in last and last[place].stop > window.start:
                clash(last[place].event, window.event, place, f"at iteration {window.start}")
            last[place] = window
    clock = [spell for spell in spells(events, iterations) if spell.time is not None]
    for one, other in combinations(clock, 2):
        shared = events[one.event].places(topology) & events[other.event].places(topology)
        if shared and (at := one.meets(other)) is not None:
            clash(one.event, other.event, min(shared), f"at {at:g} s")
    return clashes
