"""Which events begin and end when, and the log of it, `events.jsonl`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scenarios import Scenario, Spell, Window
from testbed.bursts.director import Director
from testbed.topology import host_names


def gate_iterations(timeline: Iterable[Window], iterations: int, spells: Iterable[Spell] = ()) -> list[int]:
    """The iterations before which all nodes must meet at the gate, sorted.

    A window that ends with the run needs no meeting: the end of the run ends it. Events by the clock need one before
    iteration 0, which starts the clock.
    """
    edges = {edge for window in timeline for edge in (window.start, window.stop)}
    edges |= {0 if spell.iteration is None else spell.iteration for spell in spells}
    return sorted(edge for edge in edges if edge < iterations)


class Flips:
    """Switches the events of a run when they are due, and writes the log.

    Args:
        scenario: its timeline says when to flip what.
        director: switches the events.
        log: the `events.jsonl` to write.
        queues: returns the queues' counters (:func:`testbed.shaping.queue_drops`), logged with each flip.
        on_flip: called with each line of the log about a burst.
        started: time.monotonic() of the start of the run, the zero of `time_s`.
    """

    def __init__(
        self,
        scenario: Scenario,
        director: Director,
        log: str | Path,
        queues: Callable[[], list[dict[str, Any]]],
        on_flip: Callable[[dict[str, Any]], None],
        started: float,
    ) -> None:
        self._scenario = scenario
        self._timeline, self._spells = scenario.timeline(), scenario.spells()
        self._director = director
        self._log_path = Path(log)
        self._queues = queues
        self._on_flip = on_flip
        self._started = started
        self._active: dict[int, Window] = {}
        self._clock_start: float | None = None  # time.monotonic(), of the zero of `at: {time: ...}`
        self._repeated: set[int] = set()  # events that the clock has begun and will begin again
        self._halted = False
        self._running: dict[Spell, float] = {}  # until when (time.monotonic())
        self._iteration = dict.fromkeys(host_names(scenario.topology.workers), 0)  # that each node is in

    def begin(self) -> None:
        """Write the `start` line."""
        self._log = self._log_path.open("a", encoding="utf-8")
        self._write("start")

    def end(self) -> None:
        """End what is in force, and write the `end` line."""
        with self._log:
            self._end_bursts()
            self._write("end")

    def halt(self) -> None:
        """The run is over: the clock begins nothing any more."""
        self._halted = True

    def done(self, node: str, iteration: int) -> None:
        """A node has reported the end of an iteration."""
        self._iteration[node] = iteration + 1

    def at(self, iteration: int) -> None:
        """All nodes wait to begin an iteration: end and begin what is due."""
        self._iteration = dict.fromkeys(self._iteration, iteration)
        for window in [window for window in self._active.values() if window.stop <= iteration]:
            self._stop_window(window, iteration)
        for window in self._timeline:
            if window.start == iteration:
                self._director.start(window.event)
                self._active[window.event] = window
                self._write_flip("burst_start", iteration, window.event)
        for spell in self._spells:
            if spell.iteration == iteration:
                self._start_spell(spell, iteration)
        if iteration == 0:
            self._clock_start = time.monotonic()

    def _stop_window(self, window: Window, iteration: int) -> None:
        self._director.stop(window.event)
        del self._active[window.event]
        self._write_flip("burst_stop", iteration, window.event)

    def next_due(self) -> float | None:
        """time.monotonic() of the next flip by the clock."""
        return min([*self._running.values(), *(due for due, _ in self._to_come())], default=None)

    def _to_come(self) -> list[tuple[float, Spell]]:
        """(time.monotonic(), spell) of those that the clock will start."""
        if self._clock_start is None or self._halted:
            return []
        return [(self._clock_start + spell.time, spell) for spell in self._spells if spell.time is not None]

    def by_the_clock(self) -> None:
        """End and begin what is due by now."""
        now = time.monotonic()
        for spell in [spell for spell, until in self._running.items() if until <= now]:
            self._stop_spell(spell)
        for due, spell in self._to_come():
            if due <= now:
                self._spells.remove(spell)
                if spell.period:
                    self._spells.append(spell._replace(time=spell.time + spell.period))
                    self._repeated.add(spell.event)
                self._start_spell(spell, self._span_of(spell.event)[0], due)

    def _start_spell(self, spell: Spell, iteration: int, planned: float | None = None) -> None:
        for other in [other for other in self._running if other.event == spell.event]:
            self._stop_spell(other)  # lasts longer than until its own next start
        self._director.start(spell.event)
        self._running[spell] = time.monotonic() + spell.seconds
        self._write_flip("burst_start", iteration, spell.event, planned)

    def _stop_spell(self, spell: Spell) -> None:
        planned = self._running.pop(spell)
        self._director.stop(spell.event)
        self._write_flip("burst_stop", self._span_of(spell.event)[1], spell.event, planned)

    def _span_of(self, event: int) -> tuple[int, int]:
        """First and one past the last iteration that the nodes it touches are in now."""
        channels = self._director.event(event).channels(self._scenario.topology)
        iterations = [self._iteration[worker] for worker, _ in channels]
        end = self._scenario.workload.iterations
        return min(*iterations, end - 1), min(max(iterations) + 1, end)

    def _end_bursts(self) -> None:
        for window in list(self._active.values()):
            self._stop_window(window, min(window.stop, self._span_of(window.event)[1]))  # a run may end early
        for spell in list(self._running):
            self._stop_spell(spell)
        for spell in [s for s in self._spells if s.time is not None and s.event not in self._repeated]:
            entry = self._write("missed", event=spell.event, planned_s=spell.time)  # the run was over before
            self._on_flip(entry)

    def _write_flip(self, kind: str, iteration: int, index: int, planned: float | None = None) -> None:
        fields = self._director.facts(index)
        if planned is not None:
            fields["planned_s"] = round(planned - self._started, 6)
        self._on_flip(self._write(kind, iteration=iteration, event=index, **fields))

    def _write(self, kind: str, **fields: Any) -> dict[str, Any]:
        entry = {
            "time_s": round(time.monotonic() - self._started, 6),
            "wall": datetime.now(UTC).isoformat(),
            "kind": kind,
            **fields,
            "counters": [
                {"host": host, "direction": direction, "seen": count.seen, "dropped": count.dropped}
                for (host, direction), count in self._director.counters().items()
            ],
            "queues": self._queues(),
        }
        self._log.write(json.dumps(entry) + "\n")
        self._log.flush()
        return entry
