"""All kinds of events."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from scenarios.events.corrupt import CorruptEvent
from scenarios.events.delay import DelayEvent
from scenarios.events.duplicate import DuplicateEvent
from scenarios.events.kill import KillEvent
from scenarios.events.link_down import LinkDownEvent
from scenarios.events.loss import LossEvent
from scenarios.events.partition import PartitionEvent
from scenarios.events.rate import RateEvent
from scenarios.events.reorder import ReorderEvent
from scenarios.events.stop import StopEvent
from scenarios.events.traffic import TrafficEvent

Event = Annotated[
    LossEvent
    | DelayEvent
    | ReorderEvent
    | DuplicateEvent
    | CorruptEvent
    | PartitionEvent
    | RateEvent
    | LinkDownEvent
    | TrafficEvent
    | StopEvent
    | KillEvent,
    Field(discriminator="action"),
]
LinkImpairment = LossEvent | DelayEvent | ReorderEvent | DuplicateEvent | CorruptEvent | PartitionEvent
"""Events that an injector carries out on the datagrams of a link."""
