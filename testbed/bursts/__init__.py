"""Bursts: what the events of a scenario do to single links, switched on and off between two iterations or by the clock.

Impairments of datagrams sit on the switch port, not on the sending host, where the kernel would report a loss to the
sender. What enters the switch meets them there, what leaves it does before it joins the port's queue. Each datagram is
drawn for on its own. Two injectors carry them out: :mod:`testbed.bursts.netem` for kernels with sch_netem, and
:mod:`testbed.bursts.bpf`, which loses, duplicates and cuts, for others from Linux 6.6 on. What every action does stands
in a file of its own in :mod:`testbed.bursts.actions`; :mod:`testbed.bursts.director` switches them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scenarios import Scenario, Topology
from scenarios.events import LinkImpairment, LossEvent, PartitionEvent
from testbed.bursts import actions
from testbed.errors import UserError
from testbed.switches import ovs_datapath
from testbed.topology import sending_end, upper_end

Direction = Literal["to_server", "to_worker"]
Traffic = Literal["udp", "all"]
LinkKey = tuple[str, str]  # (host, direction)

IPPROTO_UDP = 17


class InjectorError(UserError):
    """Events cannot be carried out; the text names what refused and the remedy."""


@dataclass(frozen=True)
class LinkEnd:
    """One direction of a link, at a switch.

    Attributes:
        host: 'w1', or 'srv'; of a link between switches its name, 'leaf1-spine1'.
        direction: 'to_server' or 'to_worker', which way the datagrams go that are hit.
        interface: the switch port, 's1-w1'.
        protocol: 'udp' hits datagrams to the transport's data ports only, 'all' every IPv4 packet. A partition of
            all protocols takes every frame in either case.
        hook: whether the port receives these datagrams, or sends them.
    """

    host: str
    direction: Direction
    interface: str
    protocol: Traffic
    hook: Literal["ingress", "egress"]

    @property
    def key(self) -> LinkKey:
        return self.host, self.direction


def link_end(link: str, direction: Direction, protocol: Traffic, topology: Topology) -> LinkEnd:
    """Where to meet the datagrams of a link: at the port of the switch that sends them, or else receives them."""
    node, interface = sending_end(link, direction, topology)
    if node in topology.switches:
        return LinkEnd(link, direction, interface, protocol, "egress")
    return LinkEnd(link, direction, upper_end(link, topology)[1], protocol, "ingress")


@dataclass(frozen=True)
class Counters:
    """Packets the injector has looked at, and how many of them it dropped, since `prepare`."""

    seen: int
    dropped: int


class Injector(ABC):
    """What both injectors do. After `close`, or after the death of the process and its network namespace,
    nothing of an injector is left."""

    name: str

    @abstractmethod
    def prepare(self, links: Sequence[LinkEnd]) -> None:
        """Put itself on these links, with nothing in force. Once, from the namespace of the switch.

        Raises:
            InjectorError: the kernel refuses.
        """

    @abstractmethod
    def set(self, changes: Mapping[LinkKey, Sequence[LinkImpairment]]) -> None:
        """Do to each further packet of prepared links what these events say, and nothing else; in force on return.

        Other links stay as they are.

        Raises:
            InjectorError: a link was not prepared, or the kernel refuses.
        """

    @abstractmethod
    def counters(self) -> dict[LinkKey, Counters]:
        """Cumulative counts per prepared link."""

    @abstractmethod
    def close(self) -> None:
        """Take everything away again; may be called twice."""

    def set_loss(self, host: str, direction: str, probability: float) -> None:
        """Lose each further packet with this probability (0 to 1), and nothing else.

        Raises:
            InjectorError: as `set`, or the probability is outside 0..1.
        """
        if not 0 <= probability <= 1:
            raise InjectorError(f"loss on {host} {direction}: {probability} is not a probability in 0..1")
        self.set({(host, direction): [random_loss(probability)] if probability else []})


def random_loss(probability: float) -> LossEvent:
    """Independent losses, as an event of its own."""
    fields = {"action": "loss", "loss": probability, "at": {"iteration": 0}, "duration": 1}
    return LossEvent.model_validate(fields, context={"resolved": True})


def link_ends(scenario: Scenario) -> list[LinkEnd]:
    """The links that a scenario's impairments hit, each once.

    Raises:
        InjectorError: two events ask of one link what cannot be done on one: different `protocol`s, for which there
            is one filter, or a delay without `distribution` and one with it, which netem would keep.
    """
    topology = scenario.topology
    ends: dict[LinkKey, LinkEnd] = {}
    for name, default in (("protocol", "all"), ("distribution", None)):
        firsts: dict[LinkKey, tuple[int, str]] = {}
        for index, event in enumerate(scenario.events):
            if not actions.is_impairment(event):
                continue
            # A partition of all protocols needs no filter, and stands beside any.
            own = None if is_complete_cut(event) and name == "protocol" else getattr(event, name, None)
            for host, direction in event.links(topology):
                if default:
                    end = link_end(host, direction, own or default, topology)
                    if own is not None or end.key not in ends:
                        ends[end.key] = end
                if own is None:
                    continue
                first, other = firsts.setdefault((host, direction), (index, own))
                if other != own and (default or "uniform" in (own, other)):
                    raise InjectorError(
                        f"events.{index}.{name}: {own!r} on {host} {direction}, "
                        f"but events.{first} has {other!r} there; give both the same"
                    )
    return list(ends.values())


def is_complete_cut(event: LinkImpairment) -> bool:
    """Whether not even TCP, ARP or a foreign port passes."""
    return isinstance(event, PartitionEvent) and event.protocol == "all"


def check_switch(scenario: Scenario) -> None:
    """Fail before anything starts where the injectors would not see the frames of the scenario's events.

    Open vSwitch in user space reads frames from a packet socket, which the kernel feeds before any hook of tc(8).

    Raises:
        InjectorError: an event hits frames on their way into such a switch.
        SwitchError: Open vSwitch was asked for and does not work here.
    """
    if scenario.topology.switch != "ovs" or ovs_datapath() == "system":
        return
    for index, event in enumerate(scenario.events):
        links = event.links(scenario.topology) if actions.is_impairment(event) else ()
        if any(link_end(*link, "all", scenario.topology).hook == "ingress" for link in links):
            raise InjectorError(
                f"events.{index}: without kernel option CONFIG_OPENVSWITCH, Open vSwitch takes what hosts send from "
                "the port before a loss can be injected; use `switch: bridge`"
            )


def choose_injector(
    preference: Literal["auto", "netem", "bpf"] = "auto", events: Sequence[LinkImpairment] = ()
) -> Injector:
    """The injector of that name, or with 'auto' the first that this kernel can do, netem before bpf.

    Needs root.

    Args:
        events: what it will have to do.

    Raises:
        InjectorError: names what is missing for each that was tried, and the event that needs it.
    """
    from testbed.bursts.bpf import BpfInjector, bpf_problem
    from testbed.bursts.netem import NetemInjector, netem_problem

    known = {"netem": (NetemInjector, netem_problem), "bpf": (BpfInjector, bpf_problem)}
    if preference != "auto" and preference not in known:
        raise InjectorError(f"injector {preference!r}: choose auto, netem or bpf")
    problems = {}
    for name in known if preference == "auto" else [preference]:
        injector, problem_of = known[name]
        problem = problem_of()
        if problem is None:
            if name == "bpf":
                _refuse_what_bpf_cannot(events, problems.get("netem"))
            return injector()
        problems[name] = problem
    missing = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    raise InjectorError(f"this kernel cannot inject losses: {missing}")


def _refuse_what_bpf_cannot(events: Sequence[LinkImpairment], netem: str | None) -> None:
    for index, event in enumerate(events):
        problem = actions.module(event).bpf_problem(event) if actions.is_impairment(event) else None
        if problem:
            why = f", which is not here: {netem}" if netem else ""
            needs = f"events.{index}.action: {event.action!r} needs netem (kernel option CONFIG_NET_SCH_NETEM){why}"
            raise InjectorError(f"{needs}; {problem}")
