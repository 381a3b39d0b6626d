"""Events: what happens to which links or hosts, when and for how long.

`triggers` has the forms of `at`, `selectors` those of `selector`, `common` what all events share, and each action has a
file of its name. `plan` lays them out over a run. Fields have the names of Chaos Mesh and tc-netem(8). Times are
seconds, shares fractions. An event over whole iterations begins and ends while nothing is on the wire; one over a time
runs by the clock.
"""

from scenarios.events.corrupt import CorruptEvent
from scenarios.events.delay import DelayEvent
from scenarios.events.duplicate import DuplicateEvent
from scenarios.events.kill import KillEvent
from scenarios.events.link_down import LinkDownEvent
from scenarios.events.loss import FourStates, GilbertElliott, LossEvent
from scenarios.events.partition import PartitionEvent
from scenarios.events.plan import Spell, Window, overlaps, spells, windows
from scenarios.events.rate import RateEvent
from scenarios.events.reorder import ReorderEvent
from scenarios.events.selectors import DIRECTIONS, LinkDirection, LinkKey, misnamed, select
from scenarios.events.stop import StopEvent
from scenarios.events.traffic import TrafficEvent
from scenarios.events.triggers import AtEvery, AtIteration, AtRandom, AtTime, Clock, Trigger
from scenarios.events.union import Event, LinkImpairment
from scenarios.topology import SERVER

__all__ = [
    "DIRECTIONS",
    "SERVER",
    "AtEvery",
    "AtIteration",
    "AtRandom",
    "AtTime",
    "Clock",
    "CorruptEvent",
    "DelayEvent",
    "DuplicateEvent",
    "Event",
    "FourStates",
    "GilbertElliott",
    "KillEvent",
    "LinkDirection",
    "LinkDownEvent",
    "LinkImpairment",
    "LinkKey",
    "LossEvent",
    "PartitionEvent",
    "RateEvent",
    "ReorderEvent",
    "Spell",
    "StopEvent",
    "TrafficEvent",
    "Trigger",
    "Window",
    "misnamed",
    "overlaps",
    "select",
    "spells",
    "windows",
]
