"""When events begin: the forms of `at`."""

from __future__ import annotations

import random
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Discriminator, Field, Tag, model_validator

from scenarios.base import Count, CountFromZero, Strict
from scenarios.errors import located
from scenarios.units import Period, Seconds, Time


class Clock(NamedTuple):
    """By the clock: seconds since all hosts were ready for the first iteration, and then again every `period` s."""

    time: float
    period: float | None = None


class At(Strict):
    """What all forms of `at` tell."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        """The iterations, of so many, in which bursts of so many begin; none where the clock decides."""
        return []

    def clock(self) -> Clock | None:
        """When the clock begins bursts, or None where iterations do."""
        return None


class AtIteration(At):
    """Once."""

    iteration: CountFromZero
    """Iteration in which the burst starts; the first is 0."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return [self.iteration]


class AtTime(At):
    """Once, by the clock."""

    time: Time
    """Time since all hosts were ready for the first iteration: `30s`, `500ms`. Needs a duration in time."""

    def clock(self) -> Clock:
        return Clock(self.time)


class AtEvery(At):
    """Periodically, to the end of the run: by iterations, or by the clock."""

    every: Period
    """From the start of one burst to the start of the next: iterations, `93`, or a time, `5s`. A time needs a duration
    in time."""
    start: Period = Field(default_factory=lambda data: data.get("every", 0))
    """Iteration or time (as `every`) of the first burst; `every` by default."""

    @model_validator(mode="after")
    def _periods_fit(self) -> Self:
        if self.every <= 0:
            raise located([(("every",), f"{self.every} should be above 0")])
        if isinstance(self.every, Seconds) != isinstance(self.start, Seconds):
            wanted = "a time such as '2s'" if isinstance(self.every, Seconds) else "a number of iterations such as 10"
            raise located([(("start",), f"{self.start} does not go with every {self.every}; write {wanted}")])
        return self

    def starts(self, iterations: int, duration: int) -> list[int]:
        if isinstance(self.every, Seconds):
            return []
        return list(range(self.start, iterations, self.every)) or [self.start]

    def clock(self) -> Clock | None:
        return Clock(float(self.start), float(self.every)) if isinstance(self.every, Seconds) else None


class AtRandom(At):
    """At random iterations without overlap, drawn once: the same for all transports and all seeds of the run."""

    random: Count
    """Number of bursts."""
    seed: CountFromZero
    """Seed of the draw; another seed gives other iterations."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        # Draw places as if every burst were one iteration long, then make room for the rest of each. Sorting by
        # random() is reproducible: of Python's generator, only random() promises the same values in all versions.
        places = range(max(iterations - self.random * (duration - 1), self.random))
        draw = random.Random(self.seed)
        chosen = sorted(sorted(places, key=lambda _: draw.random())[: self.random])
        return [place + n * (duration - 1) for n, place in enumerate(chosen)]


_TRIGGER_TAGS = {"iteration": "AtIteration", "time": "AtTime", "every": "AtEvery", "random": "AtRandom"}


def _kind_of_trigger(value: Any) -> str | None:
    keys = value if isinstance(value, dict) else vars(value) if isinstance(value, Strict) else ()
    return next((tag for key, tag in _TRIGGER_TAGS.items() if key in keys), None)


Trigger = Annotated[
    Annotated[AtIteration, Tag("AtIteration")]
    | Annotated[AtTime, Tag("AtTime")]
    | Annotated[AtEvery, Tag("AtEvery")]
    | Annotated[AtRandom, Tag("AtRandom")],
    Discriminator(
        _kind_of_trigger,
        custom_error_type="value",
        custom_error_message="write {iteration: 279}, {time: 30s}, {every: 93}, {every: 5s} or {random: 2, seed: 7}",
    ),
]
