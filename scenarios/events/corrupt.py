"""Action `corrupt`: its keys. What it does stands in `testbed/bursts/actions/corrupt.py`."""

from __future__ import annotations

from typing import Literal

from scenarios.events.common import LinkEvent
from scenarios.units import Percentage


class CorruptEvent(LinkEvent):
    """A bit of a datagram is flipped, so that the receiving host drops it by its checksum. Needs netem."""

    action: Literal["corrupt"]
    """What happens."""
    corrupt: Percentage
    """Probability that a datagram is damaged."""
    correlation: Percentage = 0.0
    """How much each draw depends on the last."""

    slots = ("corrupt",)
