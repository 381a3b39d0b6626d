"""The star of the paper's testbed: one server, N workers, one switch (Section V, "Testbed").

Loads on its own in Mininet too::

    mn --custom testbed/topology.py --topo star,3 --switch ipbridge

Hosts are `srv` (10.0.0.1) and `w1` ... `wN` (10.0.0.2 ...); the link of host `w1` has the ends `w1-eth0`
in the host and `s1-w1` on the switch, so a line of `tc` or `ip link` output names its place. Mininet gives
each host a network namespace of its own; the switch stays in the namespace of the calling process.
"""

from __future__ import annotations

import ipaddress
import shutil
import subprocess

from mininet.net import Mininet
from mininet.node import OVSBridge, Switch
from mininet.topo import Topo

from testbed.errors import UserError

SERVER = "srv"
SWITCH = "s1"
SUBNET = ipaddress.ip_network("10.0.0.0/24")
MAX_WORKERS = SUBNET.num_addresses - 3  # network, broadcast and the server's own address


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
    return str(SUBNET[1] if host == SERVER else SUBNET[1 + int(host.removeprefix("w"))])


def host_interface(host: str) -> str:
    """The host's end of its link."""
    return f"{host}-eth0"


def switch_interface(host: str) -> str:
    """The switch's end (the port) of the link of `host`."""
    return f"{SWITCH}-{host}"


def sending_end(host: str, direction: str) -> tuple[str, str]:
    """(node, interface) of the end of the link of `host` that sends in a direction ('to_server' or 'to_worker')."""
    if (direction == "to_server") == (host != SERVER):
        return host, host_interface(host)
    return SWITCH, switch_interface(host)


class StarTopo(Topo):
    """One server and `workers` workers around switch `s1`.

    Raises:
        TopologyError: if `workers` is not in 1..253, the addresses of a /24.
    """

    def build(self, workers: int = 3, **_: object) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise TopologyError(f"topology.workers: {workers} is outside 1..{MAX_WORKERS}")
        self.addSwitch(SWITCH)
        for host in host_names(workers):
            self.addHost(host, ip=f"{host_ip(host)}/{SUBNET.prefixlen}")
            self.addLink(
                host, SWITCH, intfName1=host_interface(host), intfName2=switch_interface(host)
            )


class LinuxBridge(Switch):
    """A learning switch made of the kernel's bridge by iproute2 alone: no `brctl`, no Open vSwitch.

    Spanning tree is off, so ports forward at once; multicast snooping is off, so the bridge sends no queries
    of its own that would count as traffic of the experiment.
    """

    def start(self, controllers: list[object]) -> None:
        self._ip("link", "add", "name", self.name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        for interface in self.intfNames():
            if interface != "lo":
                self._ip("link", "set", "dev", interface, "master", self.name, "up")
        self._ip("link", "set", "dev", self.name, "up")

    def stop(self, deleteIntfs: bool = True) -> None:
        # A bridge that start() never made is no error here: stop() also clears up after a failed start.
        self.pexec("ip", "link", "del", "dev", self.name)
        super().stop(deleteIntfs)

    def _ip(self, *arguments: str) -> None:
        _, error, status = self.pexec("ip", *arguments)
        if status != 0:
            raise TopologyError(
                f"switch {self.name}: `ip {' '.join(arguments)}` failed: {error.strip()}; "
                "the kernel needs CONFIG_BRIDGE and CONFIG_VETH (run `dblp doctor`)"
            )


def ovs_problem() -> str | None:
    """Why Open vSwitch cannot be used, or None when `ovs-vsctl` answers."""
    if shutil.which("ovs-vsctl") is None:
        return "ovs-vsctl is not installed (apt install openvswitch-switch)"
    try:
        answer = subprocess.run(["ovs-vsctl", "--timeout=3", "show"], capture_output=True, text=True)
    except OSError as error:
        return f"ovs-vsctl does not start: {error}"
    if answer.returncode != 0:
        return f"ovs-vsctl: {answer.stderr.strip()} (start it: service openvswitch-switch start)"
    return None


def switch_class(kind: str) -> type[Switch]:
    """The Mininet switch for the scenario's `topology.switch`: 'auto' and 'bridge' give :class:`LinuxBridge`.

    Raises:
        TopologyError: 'ovs' was asked for and does not answer.
    """
    if kind == "ovs":
        problem = ovs_problem()
        if problem:
            raise TopologyError(f"topology.switch: ovs: {problem}; or use `switch: bridge`")
        return OVSBridge
    return LinuxBridge


def build_network(workers: int, switch: str = "auto") -> Mininet:
    """An unstarted Mininet of the star, links not yet shaped (:func:`testbed.shaping.apply` does that).

    ARP tables are static, so an injected loss never hides behind a lost address resolution.

    Raises:
        TopologyError: see :class:`StarTopo` and :func:`switch_class`.
    """
    return Mininet(
        topo=StarTopo(workers=workers),
        switch=switch_class(switch),
        controller=None,
        autoSetMacs=True,
        autoStaticArp=True,
    )


# The names under which `mn --custom` finds these.
topos = {"star": StarTopo}
switches = {"ipbridge": LinuxBridge}
