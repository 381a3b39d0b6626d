"""Action `link_down`: its keys. What it does stands in `testbed/bursts/actions/link_down.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import BaseEvent
from scenarios.events.selectors import DIRECTIONS, LinkKey, LinkSelector
from scenarios.topology import Topology
from scenarios.units import Timespan


class LinkDownEvent(BaseEvent):
    """The switch port goes down and comes back: both directions, and the queue in front of the link is lost."""

    action: Literal["link_down"]
    """What happens."""
    duration: Timespan
    """How long the port is down, a time: `500ms`."""
    selector: LinkSelector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`; between switches: `trunks`, or
    `[leaf1-spine1]`."""

    slots = ("link_down",)
    expected_loss = 1.0
    endless = "no iteration ends while the link is down"

    def links(self, topology: Topology) -> list[LinkKey]:
        return [(name, direction) for name in self.selected(topology) for direction in DIRECTIONS]
