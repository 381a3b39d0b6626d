"""A scenario's topology as a Mininet network.

The topologies load on their own in Mininet too, with links that have no rate::

    mn --custom testbed/topology.py --topo star,3 --switch ipbridge
    mn --custom testbed/topology.py --topo leafspine,4,2,2 --switch ipbridge    # workers, leaves, spines
    mn --custom testbed/topology.py --topo twodc,4,2 --switch ipbridge          # workers, those beside the server

Hosts are `srv` (10.0.0.1) and `w1` ... `wN` (10.0.0.2 ...). A link's two ends are named so that a line of `tc` or
`ip link` output names its place: `w1-eth0` in the host, `s1-w1` on switch `s1`, `leaf1-spine2` on `leaf1`. Mininet
gives each host a network namespace of its own; switches stay in the namespace of the calling process.
"""

from __future__ import annotations

import ipaddress
from itertools import pairwise

from mininet.net import Mininet
from mininet.topo import Topo
from pydantic import TypeAdapter, ValidationError

from scenarios import Topology
from scenarios.errors import explain
from scenarios.topology import SERVER, AnyTopology, Cable
from testbed.errors import UserError
from testbed.switches import LinuxBridge, OpenVSwitch, switch_class

SWITCH = "s1"
SUBNET = ipaddress.ip_network("10.0.0.0/24")


class TopologyError(UserError):
    """The emulated network cannot be built here; the text says what is missing and what to do."""


def worker_names(workers: int) -> list[str]:
    """`["w1", ..., "wN"]`."""
    return [f"w{rank}" for rank in range(1, workers + 1)]


def host_names(workers: int) -> list[str]:
    """The server, then the workers."""
    return [SERVER, *worker_names(workers)]


def host_ip(host: str) -> str:
    """The address of a host: `srv` has 10.0.0.1, `wK` has 10.0.0.(K+1)."""
    return str(SUBNET[_number(host)])


def host_mac(host: str) -> str:
    """The hardware address of a host; its last byte is that of the IP address."""
    return f"00:00:00:00:00:{_number(host):02x}"


def _number(host: str) -> int:
    return 1 if host == SERVER else 1 + int(host.removeprefix("w"))


def host_interface(host: str) -> str:
    """The host's end of its link."""
    return f"{host}-eth0"


def switch_interface(peer: str, switch: str = SWITCH) -> str:
    """The port of `switch` on the link to `peer`, a host or another switch."""
    return f"{switch}-{peer}"


def sending_end(link: str, direction: str, topology: Topology) -> tuple[str, str]:
    """(node, interface) of the end of a link, by `Cable.name`, that sends in a direction ('to_server', 'to_worker')."""
    cable = topology.cable(link)
    node = topology.sender(cable, direction)
    lower, upper = cable_interfaces(cable, topology)
    return node, lower if node == cable.lower else upper


def upper_end(link: str, topology: Topology) -> tuple[str, str]:
    """(switch, port) of the upper end of a link: for the link of a host, the end that is not the host's."""
    cable = topology.cable(link)
    return cable.upper, cable_interfaces(cable, topology)[1]


def cable_interfaces(cable: Cable, topology: Topology) -> tuple[str, str]:
    """Names of the lower and the upper end of a link."""
    lower, upper = cable.lower, cable.upper
    at_host = lower in topology.host_names
    return host_interface(lower) if at_host else switch_interface(upper, lower), switch_interface(lower, upper)


def forwarding(topology: Topology) -> dict[str, dict[str, str]]:
    """For each switch, the port for each host's hardware address, so that frames take `Topology.path`."""
    tables: dict[str, dict[str, str]] = {switch: {} for switch in topology.switches}
    for source in topology.host_names:
        for target in topology.host_names:
            if source != target:
                for switch, following in pairwise(topology.path(source, target)[1:]):
                    tables[switch][host_mac(target)] = switch_interface(following, switch)
    return tables


def silent_ports(topology: Topology) -> set[str]:
    """Ports that must not pass on broadcasts, since their link closes a loop; the others form a tree."""
    tree = {switch: switch for switch in topology.switches}

    def root(switch: str) -> str:
        return switch if tree[switch] == switch else root(tree[switch])

    silent: set[str] = set()
    for cable in topology.trunks():
        if root(cable.lower) == root(cable.upper):
            silent |= set(cable_interfaces(cable, topology))
        tree[root(cable.lower)] = root(cable.upper)
    return silent


class ScenarioTopo(Topo):
    """Any topology of a scenario. Switches get their forwarding table, so that loops do no harm."""

    def build(self, topology: Topology, **_: object) -> None:
        tables, silent = forwarding(topology), silent_ports(topology)
        for number, switch in enumerate(topology.switches, 1):
            self.addSwitch(switch, dpid=f"{number:016x}", table=tables[switch], silent=silent)
        for host in topology.host_names:
            self.addHost(host, ip=f"{host_ip(host)}/{SUBNET.prefixlen}", mac=host_mac(host))
        for cable in topology.cables():
            lower, upper = cable_interfaces(cable, topology)
            self.addLink(cable.lower, cable.upper, intfName1=lower, intfName2=upper)


def _unshaped(**fields: object) -> Topology:
    """A topology for Mininet alone, which knows nothing of the links' rates.

    Raises:
        TopologyError: a number is out of range.
    """
    try:
        return TypeAdapter(AnyTopology).validate_python({"link": {"rate": "1gbit"}, **fields})
    except ValidationError as error:
        problems = explain(error, fields, lambda _: "")
        raise TopologyError("; ".join(f"topology.{problem}" for problem in problems)) from None


class StarTopo(ScenarioTopo):
    """One server and `workers` workers around switch `s1`.

    Raises:
        TopologyError: if `workers` is not in 1..253, the addresses of a /24.
    """

    def build(self, workers: int = 3, **_: object) -> None:
        super().build(_unshaped(workers=workers))


class LeafSpineTopo(ScenarioTopo):
    """Workers spread over `leaves` leaf switches, each linked to all of `spines` spine switches.

    Raises:
        TopologyError: a number is out of range, or a leaf would be empty.
    """

    def build(self, workers: int = 4, leaves: int = 2, spines: int = 1, **_: object) -> None:
        super().build(
            _unshaped(kind="leaf_spine", workers=workers, leaves=leaves, spines=spines, oversubscription=1)
        )


class TwoDatacentersTopo(ScenarioTopo):
    """Two stars: the server and `local_workers` workers around `dc1`, the others around `dc2`.

    Raises:
        TopologyError: a number is out of range, or the second datacenter would be empty.
    """

    def build(self, workers: int = 4, local_workers: int = 2, **_: object) -> None:
        wan = {"rate": "1gbit"}
        super().build(_unshaped(kind="two_datacenters", workers=workers, local_workers=local_workers, wan=wan))


def build_network(topology: Topology) -> Mininet:
    """An unstarted Mininet of the topology, links not yet shaped (:func:`testbed.shaping.apply` does that).

    ARP tables are static, so an injected loss never hides behind a lost address resolution.

    Raises:
        SwitchError: see :func:`testbed.switches.switch_class`.
    """
    return Mininet(
        topo=ScenarioTopo(topology), switch=switch_class(topology.switch), controller=None, autoStaticArp=True
    )


# The names under which `mn --custom` finds these.
topos = {"star": StarTopo, "leafspine": LeafSpineTopo, "twodc": TwoDatacentersTopo}
switches = {"ipbridge": LinuxBridge, "openvswitch": OpenVSwitch}
