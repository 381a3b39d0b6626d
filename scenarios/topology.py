"""The networks that a scenario may ask for: hosts, switches, and the links between them.

All hosts share one /24 network, and switches forward by MAC address along fixed paths. Each topology says how it is
wired and which way a frame takes; emulating it is the testbed's work, and so is the share of a link that a sender gets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from scenarios.base import Count, CountFromZero, Positive, Strict
from scenarios.errors import located
from scenarios.units import Rate, Time

SERVER = "srv"

Switches = Annotated[int, Field(strict=True, ge=1, le=64)]


class Link(Strict):
    """A link, the same in both directions."""

    rate: Rate
    """Rate in bit/s: `1gbit`, `500mbit`."""
    latency: Time = 0.0
    """One-way delay. Anything above `0ms` needs a kernel with sch_netem."""
    jitter: Time = 0.0
    """Random variation of the latency, at most the latency itself; needs sch_netem too."""
    limit: Count = 1000
    """Length of the queue before the link, in packets."""
    mtu: Annotated[int, Field(strict=True, ge=576, le=9216)] = 1500
    """Largest IP packet, in bytes; a data frame of the transport fills it."""

    @model_validator(mode="after")
    def _jitter_within_latency(self) -> Self:
        if self.jitter > self.latency:
            raise located([(("jitter",), "should be at most the latency, or delays would be negative")])
        return self


class Cable(NamedTuple):
    """A link between two nodes. `field` is where the scenario describes it: `link`, `uplink` or `wan`."""

    lower: str
    upper: str
    field: str
    link: Link

    @property
    def name(self) -> str:
        """`w1` for the link of a host, `leaf1-spine1` for one between switches."""
        return self.lower if self.field == "link" else f"{self.lower}-{self.upper}"


class Topology(Strict):
    """What all topologies have: the server `srv`, the workers `w1`, `w2`, ..., and a link to a switch for each."""

    kind: str
    """Which topology."""
    workers: Annotated[int, Field(strict=True, ge=1, le=253)] = 3
    """Number of workers (the hosts share one /24 network)."""
    switch: Literal["auto", "bridge", "ovs"] = "auto"
    """Linux bridge or Open vSwitch; `auto` is the bridge."""
    link: Link
    """Shape of the link of each host."""

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`w1` to `wN`."""
        return tuple(f"w{n}" for n in range(1, self.workers + 1))

    @property
    def host_names(self) -> tuple[str, ...]:
        """The server, then the workers."""
        return (SERVER, *self.worker_names)

    @property
    @abstractmethod
    def switches(self) -> tuple[str, ...]:
        """Names of the switches."""

    @abstractmethod
    def switch_of(self, host: str) -> str:
        """The switch that a host is plugged into."""

    def trunks(self) -> list[Cable]:
        """The links between switches. Without the last ones that close a loop they span all switches."""
        return []

    def between(self, source: str, target: str) -> list[str]:
        """The switches between the switches `source` and `target`, in order."""
        return []

    def cables(self) -> list[Cable]:
        """All links: those of the hosts, then those between switches."""
        access = [Cable(host, self.switch_of(host), "link", self.link) for host in self.host_names]
        return access + self.trunks()

    def cable(self, name: str) -> Cable:
        """The link of that name. Raises StopIteration where there is none."""
        return next(cable for cable in self.cables() if cable.name == name)

    def sender(self, cable: Cable, direction: str) -> str:
        """The end of a link that sends in a direction: the one farther from the server sends `to_server`."""
        near, far = sorted((cable.lower, cable.upper), key=self._hops().__getitem__)
        return far if direction == "to_server" else near

    def _hops(self) -> dict[str, int]:
        """How many links each node is away from the server."""
        hops, ring = {SERVER: 0}, {SERVER}
        while ring:
            ends = [end for cable in self.cables() for end in (cable[:2], cable[1::-1])]
            ring = {there for here, there in ends if here in ring and there not in hops}
            hops |= dict.fromkeys(ring, max(hops.values()) + 1)
        return hops

    def crossing(self, cable: Cable) -> list[str]:
        """The workers whose gradients cross a link, in rank order."""
        if cable.lower in self.worker_names:
            return [cable.lower]
        ends = set(cable[:2])
        return [name for name in self.worker_names if ends in map(set, pairwise(self.path(name, SERVER)))]

    def path(self, source: str, target: str) -> list[str]:
        """The nodes that a frame from one host to another passes, both included. The way back is the same."""
        first, last = self.switch_of(source), self.switch_of(target)
        middle = [first] if first == last else [first, *self.between(first, last), last]
        return [source, *middle, target]

    def shares(self) -> list[float]:
        """bit/s for each worker, in rank order, when all send to the server at once, or receive from it.

        The least, over the links on the worker's path, of the link's rate over the workers whose path crosses it. What
        workers on a narrow link leave free on a wide one stays free: an all-reduce waits for the slowest anyway.
        """
        rates = {frozenset(cable[:2]): cable.link.rate for cable in self.cables()}
        paths = [self.path(name, SERVER) for name in self.worker_names]
        crossed = [[frozenset(hop) for hop in pairwise(path)] for path in paths]
        senders = Counter(hop for hops in crossed for hop in hops)
        return [min(rates[hop] / senders[hop] for hop in hops) for hops in crossed]

    def _check_mtu(self, field: str, link: Link) -> None:
        if link.mtu != self.link.mtu:
            message = (
                f"{link.mtu} differs from topology.link.mtu, {self.link.mtu}; switches neither fragment nor tell the "
                "sender, so frames would vanish"
            )
            raise located([((field, "mtu"), message)])


class Star(Topology):
    """One server and the workers around one switch: the paper's testbed."""

    kind: Literal["star"] = "star"
    """Which topology; `star` unless said otherwise."""

    @property
    def switches(self) -> tuple[str, ...]:
        return ("s1",)

    def switch_of(self, host: str) -> str:
        return "s1"


class LeafSpine(Topology):
    """Two tiers: hosts on leaf switches, each leaf linked to each spine.

    The server is on the first leaf. Workers fill the leaves in order, in blocks that differ by one worker at most. All
    frames between two leaves take one spine, in both directions: that of the number (leaf + leaf) modulo the spines.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"kind": "leaf_spine", "oversubscription": 4, "link": {"rate": "1gbit"}}]}
    )

    kind: Literal["leaf_spine"]
    """Which topology."""
    leaves: Switches = 2
    """Number of leaf switches, `leaf1` to `leafN`."""
    spines: Annotated[int, Field(strict=True, ge=1, le=16)] = 1
    """Number of spine switches, `spine1` to `spineM`."""
    oversubscription: Positive | None = None
    """What the hosts of the fullest leaf can send over what its uplinks carry together, such as 4 (for 4:1). Gives the
    rate of the uplinks; their queue is that of `link`, their latency 0."""
    uplink: Link | None = None
    """Shape of each link between a leaf and a spine, instead of `oversubscription`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.leaves > self.workers:
            raise located([(("leaves",), f"{self.leaves} leaves for {self.workers} workers: some would be empty")])
        if (self.oversubscription is None) == (self.uplink is None):
            raise located([((), "write either 'oversubscription', such as 4, or 'uplink', such as {rate: 500mbit}")])
        self._check_mtu("uplink", self.uplink_shape)
        return self

    @property
    def switches(self) -> tuple[str, ...]:
        leaves = [f"leaf{n}" for n in range(1, self.leaves + 1)]
        return (*leaves, *(f"spine{n}" for n in range(1, self.spines + 1)))

    def switch_of(self, host: str) -> str:
        rank = 0 if host == SERVER else int(host.removeprefix("w")) - 1
        return f"leaf{rank * self.leaves // self.workers + 1}"

    @property
    def uplink_shape(self) -> Link:
        """`uplink`, or what `oversubscription` makes of `link`."""
        if self.uplink is not None:
            return self.uplink
        fullest = max(Counter(map(self.switch_of, self.host_names)).values())
        rate = max(round(fullest * self.link.rate / (self.oversubscription * self.spines)), 1)
        return self.link.model_copy(update={"rate": rate, "latency": 0.0, "jitter": 0.0})

    def trunks(self) -> list[Cable]:
        return [
            Cable(f"leaf{leaf}", f"spine{spine}", "uplink", self.uplink_shape)
            for spine in range(1, self.spines + 1)
            for leaf in range(1, self.leaves + 1)
        ]

    def between(self, source: str, target: str) -> list[str]:
        pair = int(source.removeprefix("leaf")) + int(target.removeprefix("leaf"))
        return [f"spine{pair % self.spines + 1}"]


class TwoDatacenters(Topology):
    """Two stars joined by one long link: the server in the first, workers in both (section VI-A of the paper)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "two_datacenters", "link": {"rate": "1gbit"}, "wan": {"rate": "200mbit"}}]
        }
    )

    kind: Literal["two_datacenters"]
    """Which topology."""
    local_workers: CountFromZero = Field(
        default_factory=lambda data: data.get("workers", 0) // 2
    )
    """Workers in the server's datacenter, the first ones; the others are in the second. Half of them by default."""
    wan: Link
    """Shape of the link between the two."""

    @model_validator(mode="after")
    def _somebody_is_remote(self) -> Self:
        if self.local_workers >= self.workers:
            message = f"{self.local_workers} of {self.workers} workers: none is left for the second datacenter"
            raise located([(("local_workers",), message)])
        self._check_mtu("wan", self.wan)
        return self

    @property
    def switches(self) -> tuple[str, ...]:
        return ("dc1", "dc2")

    def switch_of(self, host: str) -> str:
        return "dc1" if host == SERVER or int(host.removeprefix("w")) <= self.local_workers else "dc2"

    def trunks(self) -> list[Cable]:
        return [Cable("dc1", "dc2", "wan", self.wan)]


def _star_by_default(value: Any) -> Any:
    return {"kind": "star", **value} if isinstance(value, dict) else value


AnyTopology = Annotated[
    Star | LeafSpine | TwoDatacenters, Field(discriminator="kind"), BeforeValidator(_star_by_default)
]
