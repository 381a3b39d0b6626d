"""Action `kill`: its keys. What it does stands in `testbed/bursts/actions/kill.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import BaseEvent
from scenarios.events.selectors import HostSelector
from scenarios.units import Seconds, Span


class KillEvent(BaseEvent):
    """The processes of the chosen hosts are killed (SIGKILL). The run fails and names them."""

    action: Literal["kill"]
    """What happens."""
    selector: HostSelector
    """Who: `workers`, `server`, `all`, or a list such as `[w2]`."""

    slots = ("kill",)
    hosts_only = "only hosts have processes"

    @property
    def span(self) -> Span:
        return Seconds(0)
