"""Action `reorder`: its keys. What it does stands in `testbed/bursts/actions/reorder.py`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from scenarios.base import Count
from scenarios.errors import located
from scenarios.events.common import LinkEvent
from scenarios.units import Percentage, Time


class ReorderEvent(LinkEvent):
    """A share of the datagrams overtakes the others, which are delayed. Needs netem."""

    action: Literal["reorder"]
    """What happens."""
    reorder: Percentage
    """Share of the datagrams that go at once."""
    latency: Time
    """Delay of the others."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last."""
    gap: Count = 1
    """Only every so many datagrams may overtake."""

    slots = ("delay",)

    @model_validator(mode="after")
    def _others_are_late(self) -> Self:
        if not self.latency:
            raise located([(("latency",), "should be above 0ms, or there is nothing to overtake")])
        return self
