"""Action `traffic`: its keys. What it does stands in `testbed/bursts/actions/traffic.py`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.base import Count
from scenarios.errors import located
from scenarios.events.common import BaseEvent
from scenarios.events.selectors import HostSelector, LinkKey
from scenarios.topology import SERVER, Topology
from scenarios.units import Duration, Rate


class TrafficEvent(BaseEvent):
    """Cross traffic from hosts of its own fills the switch's queue towards the chosen hosts: loss by congestion."""

    action: Literal["traffic"]
    """What happens."""
    kind: Literal["udp", "tcp"] = "udp"
    """`udp`: an incast of datagrams at `rate`; `tcp`: bulk flows, as iperf3 sends them."""
    senders: Annotated[int, Field(strict=True, ge=1, le=16)] = 2
    """Number of hosts, added for this, that send to each chosen host."""
    rate: Rate | None = None
    """Rate of each UDP sender; by default the rate of the links."""
    flows: Count = 1
    """TCP connections of each sender."""
    duration: Duration
    """How long it lasts: `1 iteration`, `5 iterations`, or a time: `500ms`."""
    selector: HostSelector = "server"
    """Towards whom; by default the server, whose queue the gradients share."""

    slots = ("traffic",)
    hosts_only = "cross traffic goes to hosts, and fills the queues on its way there"

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> Self:
        if self.kind == "tcp" and self.rate is not None:
            raise located([(("rate",), "goes with kind 'udp'; TCP finds its own rate")])
        if self.kind == "udp" and self.flows != 1:
            raise located([(("flows",), "goes with kind 'tcp'")])
        return self

    def links(self, topology: Topology) -> list[LinkKey]:
        return [(host, "to_server" if host == SERVER else "to_worker") for host in self.selected(topology)]
