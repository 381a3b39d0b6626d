"""Action `rate`: the links have another rate, set in the HTB class that shapes them."""

from __future__ import annotations

from scenarios.events import RateEvent
from testbed import shaping
from testbed.bursts import actions
from testbed.topology import sending_end


class Action(actions.Action):
    """Changes the classes of both directions' sending ends."""

    def start(self) -> None:
        self._set({"rate": self.event.rate})

    def stop(self) -> None:
        self._set({})

    def _set(self, changes: dict[str, int]) -> None:
        topology = self.stage.scenario.topology
        for link, direction in self.event.links(topology):
            node, interface = sending_end(link, direction, topology)
            shape = topology.cable(link).link.model_copy(update=changes)
            shaping.change_rate(self.stage.network[node], interface, shape)


def local_problem(event: RateEvent) -> str | None:
    return actions.NO_LINK
