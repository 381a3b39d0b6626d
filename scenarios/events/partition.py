"""Action `partition`: its keys. What it does stands in `testbed/bursts/actions/partition.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import LinkEvent
from scenarios.units import Timespan


class PartitionEvent(LinkEvent):
    """Nothing passes, control messages over TCP included."""

    action: Literal["partition"]
    """What happens."""
    duration: Timespan
    """How long it lasts, a time: `500ms`."""
    direction: Literal["to_server", "to_worker", "both"] = "both"
    """Which way is cut; `both` by default."""
    protocol: Literal["udp", "all"] = "all"
    """`all`: nothing passes; `udp`: the control messages still do."""

    slots = ("partition",)
    expected_loss = 1.0
    endless = "no iteration ends while nothing passes"
