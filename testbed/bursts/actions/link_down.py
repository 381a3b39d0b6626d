"""Action `link_down`: the switch port goes down, so the host loses its carrier, and comes back."""

from __future__ import annotations

from scenarios.events import LinkDownEvent
from testbed import shaping
from testbed.bursts import actions
from testbed.topology import upper_end


class Action(actions.Action):
    """`ip link set ... down` and `up`. The host keeps its address and its ARP table."""

    def start(self) -> None:
        self._set("down")

    def stop(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        topology = self.stage.scenario.topology
        for link in self.event.selected(topology):
            switch, port = upper_end(link, topology)
            shaping.set_link(self.stage.network[switch], port, state)


def local_problem(event: LinkDownEvent) -> str | None:
    return actions.NO_LINK
