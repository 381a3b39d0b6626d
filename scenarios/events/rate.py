"""Action `rate`: its keys. What it does stands in `testbed/bursts/actions/rate.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import BaseEvent, LinkEvent
from scenarios.events.selectors import LinkSelector
from scenarios.units import Duration, Rate


class RateEvent(BaseEvent):
    """The links have another rate."""

    action: Literal["rate"]
    """What happens."""
    rate: Rate
    """The rate while the event lasts: `100mbit`."""
    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: LinkSelector = "workers"
    """Whose links: `workers`, `server`, `all`, or a list such as `[w1, w3]`; between switches: `trunks`, or
    `[leaf1-spine1]`."""
    direction: Literal["to_server", "to_worker", "both"] = "both"
    """Which direction of the links; `both` by default."""

    slots = ("rate",)
    links = LinkEvent.links
