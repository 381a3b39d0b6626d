"""Action `stop`: its keys. What it does stands in `testbed/bursts/actions/stop.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import BaseEvent
from scenarios.events.selectors import HostSelector
from scenarios.units import Timespan


class StopEvent(BaseEvent):
    """The processes of the chosen hosts are stopped (SIGSTOP) and go on afterwards (SIGCONT): a straggler."""

    action: Literal["stop"]
    """What happens."""
    duration: Timespan
    """How long they stand still, a time: `500ms`."""
    selector: HostSelector
    """Who: `workers`, `server`, `all`, or a list such as `[w2]`."""

    slots = ("stop",)
    hosts_only = "only hosts have processes"
    endless = "no iteration ends while a host stands still"
