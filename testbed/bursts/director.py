"""Switches the events of a scenario on and off, and knows which are on.

Of two that set the same thing on one link, the one that started last counts, and after its end the other again; loading
has refused those that would meet for certain. Different actions on one link combine.
"""

from __future__ import annotations

from collections.abc import Callable
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from scenarios import Event, Scenario
from scenarios.events import LinkImpairment
from testbed.bursts import Counters, Injector, LinkKey, actions

if TYPE_CHECKING:
    from mininet.net import Mininet


class Director:
    """What the gate tells when to do what. A context manager around the first iteration to the last.

    Args:
        scenario: whose events.
        injector: prepared for the scenario's links.
        network: the emulated network, or None in engine `local`.
        process: the process of a host.
    """

    def __init__(
        self,
        scenario: Scenario,
        injector: Injector,
        network: Mininet | None = None,
        process: Callable[[str], Popen | None] = lambda host: None,
    ) -> None:
        self._topology, self._events = scenario.topology, scenario.events
        self._injector = injector
        self._active: list[int] = []  # indices of events, in the order of their starts
        self._begun: set[int] = set()
        stage = actions.Stage(scenario, network, process)
        self._actions: dict[int, actions.Action] = {
            index: actions.module(event).Action(event, stage)
            for index, event in enumerate(scenario.events)
            if not actions.is_impairment(event)
        }

    def __enter__(self) -> Director:
        for action in self._actions.values():
            action.prepare()
        return self

    def __exit__(self, *exception: object) -> None:
        for action in self._actions.values():
            action.close()

    def event(self, index: int) -> Event:
        return self._events[index]

    def start(self, index: int) -> None:
        """Switch an event on; in force on return. Raises UserError as its action does."""
        self._active.append(index)
        self._begun.add(index)
        self._apply(index)

    def stop(self, index: int) -> None:
        """Switch it off again."""
        self._active.remove(index)
        if index not in self._actions:
            self._apply(index)
            return
        self._actions[index].stop()
        places = self._events[index].places(self._topology)
        for other in self._active:
            if places & self._events[other].places(self._topology):
                self._actions[other].start()

    def _apply(self, index: int) -> None:
        if index in self._actions:
            self._actions[index].start()
            return
        links = self._events[index].links(self._topology)
        self._injector.set({link: self._in_force(link) for link in links})

    def _in_force(self, link: LinkKey) -> list[LinkImpairment]:
        by_slot: dict[str, LinkImpairment] = {}
        for index in self._active:
            event = self._events[index]
            if index not in self._actions and link in event.links(self._topology):
                by_slot |= dict.fromkeys(event.slots, event)
        return list(by_slot.values())

    def killed_by(self, host: str) -> int | None:
        """The event that has killed the host's process, if one has."""
        kills = (index for index in sorted(self._begun) if self._events[index].action == "kill")
        return next((index for index in kills if host in self._events[index].selected(self._topology)), None)

    def facts(self, index: int) -> dict[str, Any]:
        """What an event's line in the log says beyond its time."""
        event = self._events[index]
        links = event.links(self._topology)
        where = {} if links else {"hosts": list(event.selected(self._topology))}
        own = self._actions[index].facts() if index in self._actions else {}
        model = {"model": event.model} if event.action == "loss" else {}
        return {
            "action": event.action, "links": [list(link) for link in links], "loss": event.expected_loss,
            "channels": [list(channel) for channel in event.channels(self._topology)], **where, **model, **own,
        }

    def counters(self) -> dict[LinkKey, Counters]:
        """The injector's."""
        return self._injector.counters()
