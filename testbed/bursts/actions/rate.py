"""Action `rate`: the links have another rate, set in the HTB class that shapes them."""

from __future__ import annotations

from scenarios.events import RateEvent
from testbed import shaping
from testbed.bursts import actions
from testbed.topology import sending_end


class Action(actions.Action):
    """Changes the classes of both directions' sending ends."""

    def start(self) -> None:
        self._set(self.event.rate)

    def stop(self) -> None:
        self._set(self.stage.scenario.topology.link.rate)

    def _set(self, rate: int) -> None:
        link = self.stage.scenario.topology.link.model_copy(update={"rate": rate})
        for host, direction in self.event.links(self.stage.scenario.topology):
            node, interface = sending_end(host, direction, self.stage.scenario.topology)
            shaping.change_rate(self.stage.network[node], interface, link)


def local_problem(event: RateEvent) -> str | None:
    return actions.NO_LINK
