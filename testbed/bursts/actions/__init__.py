"""What each action of a scenario does, a module an action.

Modules of impairments, which an injector carries out on datagrams, have

- `netem(event)`: the words of tc-netem(8), by the keyword that they set;
- `bpf_problem(event)`: why a BPF program cannot do it, or None;
- `local_problem(event)`: why engine `local` cannot do it, or None.

The others have a class `Action` that does it itself, and `local_problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from subprocess import Popen
from types import ModuleType
from typing import TYPE_CHECKING

from scenarios.events import Event, LinkImpairment

if TYPE_CHECKING:
    from mininet.net import Mininet

    from scenarios import Scenario

NO_LINK = "engine local has no links"


@dataclass(frozen=True)
class Stage:
    """What actions work on.

    Attributes:
        scenario: of the run.
        network: the emulated network, or None in engine `local`.
        process: the process of a host, or None while it has none.
    """

    scenario: Scenario
    network: Mininet | None = None
    process: Callable[[str], Popen | None] = lambda host: None


class Action:
    """Something that is switched on and off for one event. `start` may be called again while it is on."""

    def __init__(self, event: Event, stage: Stage) -> None:
        self.event, self.stage = event, stage

    def prepare(self) -> None:
        """Whatever takes time, before the first iteration."""

    def start(self) -> None:
        """In force on return."""
        raise NotImplementedError

    def stop(self) -> None:
        """No longer in force on return."""
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """For the event's line in `events.jsonl`."""
        return {}

    def close(self) -> None:
        """Leave nothing; may be called twice."""


def module(event: Event) -> ModuleType:
    """The module that implements an event's action."""
    from testbed.bursts.actions import (
        corrupt,
        delay,
        duplicate,
        kill,
        link_down,
        loss,
        partition,
        rate,
        reorder,
        stop,
        traffic,
    )

    return {
        "loss": loss, "delay": delay, "reorder": reorder, "duplicate": duplicate, "corrupt": corrupt,
        "partition": partition, "rate": rate, "link_down": link_down, "traffic": traffic, "stop": stop, "kill": kill,
    }[event.action]


def is_impairment(event: Event) -> bool:
    """Whether an injector carries the event out."""
    return isinstance(event, LinkImpairment)


def percent(share: float) -> str:
    """A fraction as tc writes it."""
    return f"{share * 100:.6f}%"


def microseconds(seconds: float) -> str:
    """A time as tc writes it."""
    return f"{seconds * 1e6:.3f}us"
