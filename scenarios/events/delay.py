"""Action `delay`: its keys. What it does stands in `testbed/bursts/actions/delay.py`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from scenarios.errors import located
from scenarios.events.common import LinkEvent
from scenarios.units import Percentage, Time


class DelayEvent(LinkEvent):
    """Datagrams are delayed. Needs netem."""

    action: Literal["delay"]
    """What happens."""
    latency: Time
    """Mean delay: `20ms`."""
    jitter: Time = 0.0
    """Variation of the delay, at most the latency; datagrams overtake each other."""
    correlation: Percentage = 0.0
    """How much each delay depends on the last."""
    distribution: Literal["uniform", "normal", "pareto", "paretonormal"] = "uniform"
    """Distribution of the delays around the latency; all but `uniform` need a jitter."""

    slots = ("delay",)

    @model_validator(mode="after")
    def _delay_makes_sense(self) -> Self:
        if not self.latency:
            raise located([(("latency",), "should be above 0ms")])
        if self.jitter > self.latency:
            raise located([(("jitter",), "should be at most the latency, or delays would be negative")])
        if not self.jitter and (self.correlation or self.distribution != "uniform"):
            field = "correlation" if self.correlation else "distribution"
            raise located([((field,), "needs a jitter above 0ms")])
        return self
