"""When events begin: the forms of `at`."""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from scenarios.base import Count, CountFromZero, Strict
from scenarios.units import Time


class AtIteration(Strict):
    """Once."""

    iteration: CountFromZero
    """Iteration in which the burst starts; the first is 0."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return [self.iteration]


class AtTime(Strict):
    """Once, by the clock."""

    time: Time
    """Time since all hosts were ready for the first iteration: `30s`, `500ms`. Needs a duration in time."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return []


class AtEvery(Strict):
    """Periodically, to the end of the run."""

    every: Count
    """Iterations from the start of one burst to the start of the next."""
    start: CountFromZero = Field(default_factory=lambda data: data.get("every", 0))
    """Iteration of the first burst; `every` by default."""

    def starts(self, iterations: int, duration: int) -> list[int]:
        return list(range(self.start, iterations, self.every)) or [self.start]


class AtRandom(Strict):
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
        custom_error_message="write {iteration: 279}, {time: 30s}, {every: 93} or {random: 2, seed: 7}",
    ),
]
