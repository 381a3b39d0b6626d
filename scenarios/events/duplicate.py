"""Action `duplicate`: its keys. What it does stands in `testbed/bursts/actions/duplicate.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import LinkEvent
from scenarios.units import Percentage


class DuplicateEvent(LinkEvent):
    """Datagrams arrive twice."""

    action: Literal["duplicate"]
    """What happens."""
    duplicate: Percentage
    """Probability that a datagram is doubled."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last; above 0% it needs netem."""

    slots = ("duplicate",)
