"""Burst injection: random loss on single links, switched on and off between two iterations.

Loss sits on the switch port, not on the sending host, where the kernel would report it to the sender. Going to
the server a datagram meets it when it enters the switch, going to a worker before it joins the port's queue. Each
datagram is drawn for on its own. Two injectors do the same by different means: :mod:`testbed.bursts.netem`
for kernels with sch_netem, :mod:`testbed.bursts.bpf` for others from Linux 6.6 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from scenarios import Scenario
from testbed.errors import UserError
from testbed.switches import ovs_datapath
from testbed.topology import switch_interface

Direction = Literal["to_server", "to_worker"]
Traffic = Literal["udp", "all"]
LinkKey = tuple[str, str]  # (host, direction)

IPPROTO_UDP = 17


class InjectorError(UserError):
    """Losses cannot be injected; the text names what refused and the remedy."""


@dataclass(frozen=True)
class LinkEnd:
    """One direction of one worker's link, at the switch.

    Attributes:
        host: the worker, 'w1'.
        direction: 'to_server' is what the port receives, 'to_worker' what it sends.
        interface: the switch port, 's1-w1'.
        protocol: 'udp' hits datagrams to the transport's data ports only, 'all' every IPv4 packet.
    """

    host: str
    direction: Direction
    interface: str
    protocol: Traffic

    @property
    def key(self) -> LinkKey:
        return self.host, self.direction


@dataclass(frozen=True)
class Counters:
    """Packets the injector has looked at, and how many of them it dropped, since `prepare`."""

    seen: int
    dropped: int


class Injector(Protocol):
    """What both injectors do. After `close`, or after the death of the process and its network namespace,
    nothing of an injector is left."""

    name: str

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        """Put itself on these links, with no loss yet. Once, from the namespace of the switch.

        Raises:
            InjectorError: the kernel refuses.
        """

    def set_loss(self, host: str, direction: str, probability: float) -> None:
        """Lose each further packet of a prepared link with this probability (0 to 1); in force on return.

        Raises:
            InjectorError: the link was not prepared, the probability is outside 0..1, or the kernel refuses.
        """

    def counters(self) -> dict[LinkKey, Counters]:
        """Cumulative counts per prepared link."""

    def close(self) -> None:
        """Take everything away again; may be called twice."""


def link_ends(scenario: Scenario) -> list[LinkEnd]:
    """The links that a scenario's events hit, each once.

    Raises:
        InjectorError: two events hit one link with different `protocol`s, which one filter cannot do.
    """
    topology = scenario.topology
    ends: dict[LinkKey, tuple[int, LinkEnd]] = {}
    for index, event in enumerate(scenario.events):
        for host, direction in event.links(topology):
            port = switch_interface(host, topology.switch_of(host))
            end = LinkEnd(host, direction, port, event.protocol)
            first, other = ends.setdefault(end.key, (index, end))
            if other.protocol != end.protocol:
                raise InjectorError(
                    f"events.{index}.protocol: {end.protocol!r} on {host} {direction}, "
                    f"but events.{first} has {other.protocol!r} there; give both the same"
                )
    return [end for _, end in ends.values()]


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
        if any(direction == "to_server" for _, direction in event.links(scenario.topology)):
            raise InjectorError(
                f"events.{index}: without kernel option CONFIG_OPENVSWITCH, Open vSwitch takes frames to the server "
                "from the port before a loss can be injected; use `switch: bridge`"
            )


def check_loss(prepared: object, host: str, direction: str, probability: float) -> None:
    """The checks that every injector's `set_loss` starts with; `prepared` holds the link keys."""
    if (host, direction) not in prepared:  # type: ignore[operator]
        raise InjectorError(f"loss on {host} {direction}: this link was not prepared")
    if not 0 <= probability <= 1:
        raise InjectorError(f"loss on {host} {direction}: {probability} is not a probability in 0..1")


def choose_injector(preference: Literal["auto", "netem", "bpf"] = "auto") -> Injector:
    """The injector of that name, or with 'auto' the first that this kernel can do, netem before bpf.

    Needs root.

    Raises:
        InjectorError: names what is missing for each that was tried.
    """
    from testbed.bursts.bpf import BpfInjector, bpf_problem
    from testbed.bursts.netem import NetemInjector, netem_problem

    known = {"netem": (NetemInjector, netem_problem), "bpf": (BpfInjector, bpf_problem)}
    if preference != "auto" and preference not in known:
        raise InjectorError(f"injector {preference!r}: choose auto, netem or bpf")
    problems = []
    for name in known if preference == "auto" else [preference]:
        injector, problem_of = known[name]
        problem = problem_of()
        if problem is None:
            return injector()
        problems.append(f"{name}: {problem}")
    raise InjectorError("this kernel cannot inject losses: " + "; ".join(problems))
