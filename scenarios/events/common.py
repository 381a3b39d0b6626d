"""What events have in common, and what those have that hit datagrams on links."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from scenarios.base import Strict
from scenarios.errors import located
from scenarios.events.selectors import DIRECTIONS, LinkKey, LinkSelector, select
from scenarios.events.triggers import AtEvery, Trigger
from scenarios.topology import Topology
from scenarios.units import Duration, Seconds, Span


class BaseEvent(Strict):
    at: Trigger
    """When it starts: `{iteration: 279}`, `{every: 93, start: 10}`, `{every: 5s}`, `{random: 2, seed: 7}` or
    `{time: 30s}`."""

    slots: ClassVar[tuple[str, ...]]
    """What the event sets on a link or host: of one slot, only one event can be in force there at a time."""
    expected_loss: ClassVar[float] = 0.0
    """Share of the datagrams on its links that the injector should drop meanwhile."""
    hosts_only: ClassVar[str | None] = None
    """Why it cannot act on a link between switches, or None if it can."""
    endless: ClassVar[str | None] = None
    """Why an iteration cannot end while the event lasts, or None if it can; then the event must last a time."""

    @property
    def span(self) -> Span:
        """Iterations (int), or Seconds."""
        return self.duration  # type: ignore[attr-defined]

    def starts(self, iterations: int) -> list[int]:
        """Iterations at which it begins; none for an event by the clock."""
        return self.at.starts(iterations, 1 if isinstance(self.span, Seconds) else self.span)

    def selected(self, topology: Topology) -> tuple[str, ...]:
        """The names of what it selects: hosts, or links between switches."""
        return select(self.selector, topology)  # type: ignore[attr-defined]

    def links(self, topology: Topology) -> list[LinkKey]:
        """(name, direction) of each link that the event hits, by `Cable.name`; none for an event that hits hosts."""
        return []

    def channels(self, topology: Topology) -> list[LinkKey]:
        """(worker, direction) of each gradient's way that the event touches: all workers' for the server's link."""
        touched = self.links(topology) or [(host, way) for host in self.selected(topology) for way in DIRECTIONS]
        crossing = {name: topology.crossing(topology.cable(name)) for name, _ in touched}
        return list(dict.fromkeys((worker, way) for name, way in touched for worker in crossing[name]))

    def places(self, topology: Topology) -> set[tuple[str, ...]]:
        """(slot, name, direction) of all that it sets; direction is empty for a host."""
        where = self.links(topology) or [(host, "") for host in self.selected(topology)]
        return {(slot, *place) for slot in self.slots for place in where}

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        clock = self.at.clock()
        if clock and not isinstance(self.span, Seconds):
            raise located([(("duration",), "an event at a time lasts a time: write '500ms' or '2s'")])
        if self.endless and not isinstance(self.span, Seconds):
            raise located([(("duration",), f"{self.endless}; give it a time, such as '500ms'")])
        every = self.at.every if isinstance(self.at, AtEvery) else None
        if every is not None and isinstance(every, Seconds) == isinstance(self.span, Seconds) and every < self.span:
            span = self.span if isinstance(self.span, Seconds) else f"{self.span} iterations"
            raise located([(("duration",), f"a burst of {span} every {every} overlaps the next one")])
        return self


class LinkEvent(BaseEvent):
    """Hits datagrams at the switch port of the chosen links."""

    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: LinkSelector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`; between switches: `trunks`, or
    `[leaf1-spine1]`."""
    direction: Literal["to_server", "to_worker", "both"] = "to_server"
    """`to_server` hits the gradients, `to_worker` the averaged gradient on its way back."""
    protocol: Literal["udp", "all"] = "udp"
    """`udp` hits the data frames of the transport only, `all` also its control messages over TCP."""

    def links(self, topology: Topology) -> list[LinkKey]:
        directions = DIRECTIONS if self.direction == "both" else (self.direction,)
        return [(name, direction) for name in self.selected(topology) for direction in directions]
