"""Scenarios: what is trained, over which links, with which transports, under which bursts.

>>> from scenarios import load
>>> scenario = load("efficientnet-microburst", profile="laptop")
>>> scenario.timeline()
[Window(event=0, start=48, stop=49), Window(event=1, start=112, stop=113)]
"""

from scenarios.check import Checked, check, find
from scenarios.editor import json_schema
from scenarios.errors import Problem, ScenarioError
from scenarios.events import AtEvery, AtIteration, AtRandom, AtTime, Event, Spell, Window
from scenarios.loader import CatalogueEntry, catalogue, load, read
from scenarios.schema import Optimizer, Scenario, Workload
from scenarios.template import template
from scenarios.topology import Cable, LeafSpine, Link, Star, Topology, TwoDatacenters
from scenarios.transports import (
    BoundedLoss,
    Drop,
    FixedTolerance,
    Gloo,
    Pacing,
    PhaseAwareTolerance,
    ReliableTolerance,
    Tcp,
    Transport,
    Udp,
)

__all__ = [
    "AtEvery",
    "AtIteration",
    "AtRandom",
    "AtTime",
    "BoundedLoss",
    "Cable",
    "CatalogueEntry",
    "Checked",
    "Drop",
    "Event",
    "FixedTolerance",
    "Gloo",
    "LeafSpine",
    "Link",
    "Optimizer",
    "Pacing",
    "PhaseAwareTolerance",
    "Problem",
    "ReliableTolerance",
    "Scenario",
    "ScenarioError",
    "Spell",
    "Star",
    "Tcp",
    "Topology",
    "Transport",
    "TwoDatacenters",
    "Udp",
    "Window",
    "Workload",
    "catalogue",
    "check",
    "find",
    "json_schema",
    "load",
    "read",
    "template",
]
