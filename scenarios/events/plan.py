"""The plan of a run: windows of whole iterations, spells of time, and whether any of them meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scenarios.events.selectors import Hosts
from scenarios.events.triggers import AtTime
from scenarios.events.union import Event
from scenarios.units import Seconds


class Window(NamedTuple):
    """The iterations from `start` up to, not including, `stop` in which `Scenario.events[event]` is active."""

    event: int
    start: int
    stop: int


class Spell(NamedTuple):
    """A stretch of time in which `Scenario.events[event]` is active.

    It begins with an iteration, or `time` s after all hosts were ready for the first one; the other is None.
    """

    event: int
    iteration: int | None
    time: float | None
    seconds: float


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
        Spell(index, None, event.at.time, float(event.span)) for index, event in timed if isinstance(event.at, AtTime)
    ]
    return [
        *sorted(by_iteration, key=lambda spell: (spell.iteration, spell.event)),
        *sorted(by_clock, key=lambda spell: (spell.time, spell.event)),
    ]




def overlaps(events: Sequence[Event], topology: Hosts, iterations: int) -> dict[tuple[int, int], str]:
    """(earlier event, later event) -> message, where two would set the same on one link or host at one time.

    Windows of iterations are compared with each other, and so are times; whether an iteration and a time meet shows in
    the run alone, where the later one counts.
    """
    by_place: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    clashes: dict[tuple[int, int], str] = {}
    clock = [spell for spell in spells(events, iterations) if spell.time is not None]
    plans = (
        [(w.event, w.start, w.stop, f"at iteration {w.start}") for w in windows(events, iterations)],
        [(s.event, s.time, s.time + s.seconds, f"at {s.time:g} s") for s in clock],
    )
    for plan in plans:
        by_place.clear()
        for index, start, stop, when in plan:
            for slot, host, direction in sorted(events[index].places(topology)):
                before = by_place.setdefault((slot, host, direction), [])
                if before and before[-1][1] > start:
                    earlier, later = sorted((before[-1][0], index))
                    where = f"on the link of {host} {direction}" if direction else f"on {host}"
                    message = f"overlaps events.{earlier} {where} {when}; move one of them, or write one event for both"
                    clashes.setdefault((earlier, later), message)
                before.append((index, stop))
    return clashes
