"""How long the runs of a batch will take: from runs that were made before, corrected by how this machine does.

A complete run of the same scenario, profile and transport says how long one of its iterations takes, with start-up and
evaluations shared out. What there is no such run of is unknown until its first iterations are done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from testbed.results import RUN_FILE
from testbed.runner import Job

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference"
SETTLED = 0.1      # share of a run after which its own pace tells more than earlier runs do

Kind = tuple[str, str | None, str]
"""Scenario, profile, transport."""


def paces(roots: Iterable[Path]) -> dict[Kind, float]:
    """s an iteration of the complete runs in these folders, `SCENARIO/RUN/run.json` each; the first folder counts."""
    found: dict[Kind, float] = {}
    for root in roots:
        for path in sorted(root.glob(f"*/*/{RUN_FILE}")):
            try:
                run = json.loads(path.read_text())
                scenario = run["scenario"]
                if run["status"] == "complete":
                    kind = scenario["name"], run["profile"], run["transport"]
                    found.setdefault(kind, run["duration_s"] / scenario["workload"]["iterations"])
            except (OSError, ValueError, KeyError, TypeError):      # not ours, or half written: says nothing
                continue
    return found


class Forecast:
    """Remaining time of a batch of runs.

    Args:
        jobs: all runs, in their order.
        known: see `paces`.
        clock: s, for tests.
    """

    def __init__(
        self, jobs: Sequence[Job], known: dict[Kind, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._waiting = list(jobs)
        self._known = dict(known)
        self._actual = self._expected = 0.0      # s of the runs that have ended and were expected
        self._job: Job | None = None
        self._begun = self._first = 0.0
        self._done = 0

    def begin(self, job: Job) -> None:
        """A run starts."""
        self._waiting.remove(job)
        self._job, self._begun, self._done = job, self._clock(), 0

    def iteration(self, done: int) -> None:
        """So many iterations of it are done."""
        if self._done == 0:
            self._first = self._clock()
        self._done = max(self._done, done)

    def end(self, complete: bool) -> None:
        """It has ended; a failed run tells nothing about the next."""
        took, expected = self._clock() - self._begun, self._expect(self._job)
        if complete and expected is not None:
            self._actual += took
            self._expected += expected
        elif complete:
            self._known[self._key(self._job)] = took / self._job.scenario.workload.iterations
        self._job = None

    def remaining(self) -> tuple[float, int]:
        """s until all that can be told of has ended, and of how many runs nothing can be told yet."""
        speed = self._actual / self._expected if self._expected else 1.0
        total, unknown = 0.0, 0
        for job in self._waiting:
            expected = self._expect(job)
            unknown += expected is None
            total += speed * (expected or 0.0)
        if self._job is not None:
            current = self._current(speed)
            unknown += current is None
            total += current or 0.0
        return total, unknown

    def __str__(self) -> str:
        """As `about 12 min`, for people."""
        seconds, unknown = self.remaining()
        if not seconds and unknown:
            return "time unknown"
        more = f" and {unknown} of unknown length" if unknown else ""
        return f"about {duration(seconds)}{more}"

    def _current(self, speed: float) -> float | None:
        iterations, elapsed = self._job.scenario.workload.iterations, self._clock() - self._begun
        if self._done > max(1, SETTLED * iterations):
            return (self._clock() - self._first) / (self._done - 1) * (iterations - self._done)
        expected = self._expect(self._job)
        return None if expected is None else max(0.0, speed * expected - elapsed)

    def _expect(self, job: Job) -> float | None:
        pace = self._known.get(self._key(job))
        return None if pace is None else pace * job.scenario.workload.iterations

    @staticmethod
    def _key(job: Job) -> Kind:
        return job.scenario.name, job.scenario.profile, job.transport


def duration(seconds: float) -> str:
    """As `40 s`, `12 min` or `3.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
