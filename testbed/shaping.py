"""Link shaping: from a scenario's link to `ip`, `ethtool` and `tc` commands, applied and read back.

Mininet's own TCLink logs a refused `tc` command and goes on with an unshaped link. Here each command must
succeed, and what the kernel says afterwards must equal what was asked.

Both ends of each link send through HTB (tc-htb(8)) at the link's rate, which counts Ethernet frames
without preamble and FCS, as TCLink does: TCP over 1 Gbit/s then carries 0.956 Gbit/s of data. HTB's one
class ends in a queue of `limit` packets: pfifo, or netem where the link has latency or jitter. The queue
that fills is the one on the switch port towards the server, or towards a narrower link on the way there.
Frames reach it one by one, since hosts segment before they transmit; in a host's own queue a UDP_SEGMENT train
counts once, as on any Linux host.

Offloads. Hosts segment TCP and UDP_SEGMENT trains in software before the wire, or a single loss draw would
take a train of 44 datagrams. The switch ports have TSO off and the hosts GRO on, because veth hands frames
to GRO only then (drivers/net/veth.c, veth_skb_is_eligible_for_gro), and GRO lets a receiver that asked for
UDP_GRO take many datagrams in a call.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from mininet.net import Mininet
from mininet.node import Node

from protocol.config import ETHERNET_HEADER
from scenarios import Link, Topology
from testbed import iproute
from testbed.errors import UserError
from testbed.topology import cable_interfaces

Side = Literal["host", "switch"]

# HTB wakes late by what its timer is late, and only the bucket lets it make that up. With tc's own default
# of one frame a 1 Gbit/s link carried 0.7-0.88 Gbit/s, with this 0.999; after an idle time the bucket lets
# through this much at once, 0.6 % of a 20 MB gradient.
BURST_SECONDS = 1e-3
MIN_BURST_FRAMES = 10

# Receive coalescing in the hosts, as a NIC's interrupt throttling would do (Documentation/networking/napi.rst,
# "Software IRQ coalescing"): frames gather for this long before GRO and the stack see them. At 1 Gbit/s a
# UDP_GRO receiver gets 43 datagrams a call with it and 15 without, from three senders 31-36 and 13.
COALESCE = {"gro_flush_timeout": 20_000, "napi_defer_hard_irqs": 2}  # nanoseconds; polls

# ethtool's short name, what it reports as, and the setting on each side.
OFFLOADS: dict[Side, tuple[tuple[str, str, str], ...]] = {
    "host": (
        ("tso", "tcp-segmentation-offload", "off"),
        ("tx-udp-segmentation", "tx-udp-segmentation", "off"),
        ("gro", "generic-receive-offload", "on"),
    ),
    "switch": (
        ("tso", "tcp-segmentation-offload", "off"),
        ("gro", "generic-receive-offload", "off"),
    ),
}

KERNEL_OPTION = {
    "htb": "CONFIG_NET_SCH_HTB",
    "netem": "CONFIG_NET_SCH_NETEM",
    "clsact": "CONFIG_NET_SCH_INGRESS",
}
TOOLS = ("ip", "ethtool", "tc", "sh")  # in the order in which :func:`commands` uses them
_UNITS = {"bit": 1.0, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12}


class ShapingError(UserError):
    """A link is not what the scenario asks for; the text names the interface, what was asked and what is."""


# -- what the kernel can do ----------------------------------------------------------------------------------


@cache
def qdisc_problem(kind: str) -> str | None:
    """Why the kernel cannot do qdisc `kind` ('htb', 'netem', 'clsact'), or None when it can.

    Tries it on the loopback device of a network namespace that vanishes with the command; needs root.
    """
    arguments = {"netem": ["delay", "1ms"]}.get(kind, [])
    parent = [kind] if kind == "clsact" else ["root", kind]
    for tool in ("unshare", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (apt install util-linux iproute2)"
    command = ["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", *parent, *arguments]
    attempt = subprocess.run(command, capture_output=True, text=True)
    if attempt.returncode == 0:
        return None
    reason = " ".join(attempt.stderr.split())
    return f"`tc qdisc add ... {kind}`: {reason} (kernel option {KERNEL_OPTION[kind]})"


def check_kernel(topology: Topology) -> None:
    """Fail before anything starts when the kernel lacks what a link needs.

    Raises:
        ShapingError: names the field of the scenario and the kernel option.
    """
    problem = qdisc_problem("htb")
    if problem:
        raise ShapingError(f"topology.link.rate: this kernel cannot limit rates: {problem}")
    for cable in topology.cables():
        link = cable.link
        if needs_netem(link) and (problem := qdisc_problem("netem")):
            raise ShapingError(
                f"topology.{cable.field}: latency {link.latency:g} s and jitter {link.jitter:g} s need netem: "
                f"{problem}; set both to 0ms, or use a kernel that has it (on Debian and Ubuntu: `modprobe sch_netem`)"
            )


# -- the plan (pure) -----------------------------------------------------------------------------------------


def needs_netem(link: Link) -> bool:
    """Only netem delays packets."""
    return link.latency > 0 or link.jitter > 0


def frame_bytes(link: Link) -> int:
    """A full Ethernet frame as HTB counts it."""
    return link.mtu + ETHERNET_HEADER


def burst_bytes(link: Link) -> int:
    """HTB's bucket in bytes: 1 ms at the link's rate, at least ten frames."""
    return max(math.ceil(link.rate * BURST_SECONDS / 8), MIN_BURST_FRAMES * frame_bytes(link))


def queue_limit(link: Link) -> int:
    """The fifo's limit in packets.

    netem counts what it delays as well as what waits, so the packets in flight over the link (its
    bandwidth-delay product) come on top, and the queue itself stays `link.limit`.
    """
    in_flight = link.rate * (link.latency + link.jitter) / 8 / frame_bytes(link)
    return link.limit + math.ceil(in_flight)


def commands(link: Link, interface: str, side: Side) -> list[list[str]]:
    """The commands that shape one end of a link that has no qdiscs yet, in order.

    Jitter reorders packets, as netem draws a delay for each on its own.

    Args:
        link: rate in bit/s, latency and jitter in s (of this one direction), limit in packets, mtu in bytes.
        interface: name of the end.
        side: 'host' or 'switch': the offloads differ.
    """
    on = ["dev", interface]
    rate = f"{round(link.rate)}bit"
    burst, quantum = str(burst_bytes(link)), str(MIN_BURST_FRAMES * frame_bytes(link))
    if needs_netem(link):
        leaf = ["netem", "limit", str(queue_limit(link)), "delay", f"{link.latency * 1e6:.3f}us"]
        if link.jitter > 0:
            leaf.append(f"{link.jitter * 1e6:.3f}us")
    else:
        leaf = ["pfifo", "limit", str(queue_limit(link))]
    offloads = [word for short, _, setting in OFFLOADS[side] for word in (short, setting)]
    bucket = ["rate", rate, "ceil", rate, "burst", burst, "cburst", burst, "quantum", quantum]
    plan = [
        ["ip", "link", "set", *on, "mtu", str(link.mtu)],
        ["ethtool", "-K", interface, *offloads],
        ["tc", "qdisc", "add", *on, "root", "handle", "1:", "htb", "default", "1"],
        ["tc", "class", "add", *on, "parent", "1:", "classid", "1:1", "htb", *bucket],
        ["tc", "qdisc", "add", *on, "parent", "1:1", "handle", "10:", *leaf],
    ]
    if side == "host":
        settings = (f"echo {value} > {_attribute(interface, name)}" for name, value in COALESCE.items())
        plan.append(["sh", "-c", " && ".join(settings)])
    return plan


# -- applied, read back, compared ----------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """One end of a link.

    Attributes:
        node: the host or switch.
        interface: its interface there, unique in the network.
        side: what kind of node it is; the offloads differ.
        link: what it should be.
    """

    node: str
    interface: str
    side: Side
    link: Link


def link_ends(topology: Topology) -> list[End]:
    """Both ends of all links: those of the hosts first, then those between switches."""
    ends = []
    for cable in topology.cables():
        for node, interface in zip((cable.lower, cable.upper), cable_interfaces(cable, topology), strict=True):
            side: Side = "host" if node in topology.host_names else "switch"
            ends.append(End(node, interface, side, cable.link))
    return ends


def apply(net: Mininet, ends: Iterable[End]) -> list[dict[str, Any]]:
    """Shape link ends of a started network and verify them.

    Returns:
        :func:`read_back`'s list, for the run's metadata.

    Raises:
        ShapingError: a command failed, or the kernel reports something else than was asked.
    """
    ends = list(ends)
    for name, own in _by_node(ends).items():
        plan = [command for end in own for command in commands(end.link, end.interface, end.side)]
        _run(net[name], sorted(plan, key=lambda command: TOOLS.index(command[0])))
    states = read_back(net, ends)
    for end, state in zip(ends, states, strict=True):
        verify(state, end.link)
    return states


def read_back(net: Mininet, ends: Iterable[End]) -> list[dict[str, Any]]:
    """What the kernel says of link ends now.

    Returns:
        A JSON-ready dict per end: interface, side, mtu (bytes), rate_bps, burst_bytes, qdiscs (`tc -s -j
        qdisc` as it is, counters included), offloads {feature: 'on'|'off'}, coalesce (hosts only).

    Raises:
        ShapingError: a command failed.
    """
    ends = list(ends)
    states = {}
    for name, own in _by_node(ends).items():
        node = net[name]
        qdiscs = _qdiscs(node)
        # Not from /sys: the switch's namespace may see the /sys of another one.
        interfaces = {entry["ifname"]: entry for entry in json.loads(_run(node, [["ip", "-j", "link", "show"]]))}
        for end in own:
            klass = _run(node, [["tc", "class", "show", "dev", end.interface]])
            features = _run(node, [["ethtool", "-k", end.interface]])
            reported = dict(re.findall(r"^\s*([\w-]+): (on|off)", features, re.MULTILINE))
            state: dict[str, Any] = {
                "interface": end.interface,
                "side": end.side,
                "mtu": interfaces[end.interface]["mtu"],
                "rate_bps": _rate(klass),
                "burst_bytes": _burst(klass),
                "qdiscs": qdiscs.get(end.interface, []),
                "offloads": {long: reported.get(long) for _, long, _ in OFFLOADS[end.side]},
            }
            if end.side == "host":
                values = _run(node, [["cat", *(_attribute(end.interface, name) for name in COALESCE)]])
                state["coalesce"] = dict(zip(COALESCE, map(int, values.split()), strict=True))
            states[end.interface] = state
    return [states[end.interface] for end in ends]


def verify(state: Mapping[str, Any], link: Link) -> None:
    """Compare one entry of :func:`read_back` with what the scenario asks.

    Raises:
        ShapingError: lists each difference with the interface, the asked and the read value.
    """
    side: Side = state["side"]
    leaf = next((qdisc for qdisc in state["qdiscs"] if qdisc.get("parent") == "1:1"), {})
    options = leaf.get("options", {})
    asked: dict[str, tuple[Any, Any]] = {
        "mtu": (link.mtu, state["mtu"]),
        "queue": ("netem" if needs_netem(link) else "pfifo", leaf.get("kind")),
        "queue limit": (queue_limit(link), options.get("limit")),
    }
    for _, long, setting in OFFLOADS[side]:
        asked[long] = (setting, state["offloads"][long])
    if side == "host":
        asked |= {name: (value, state["coalesce"][name]) for name, value in COALESCE.items()}
    differences = [f"{name}: asked {want}, is {have}" for name, (want, have) in asked.items() if want != have]
    # tc prints rates to three or four digits; it keeps delays in ticks of 64 ns and prints microseconds rounded down.
    delay = options.get("delay", {})
    close: dict[str, tuple[float, float | None]] = {"rate (bit/s)": (link.rate, state["rate_bps"])}
    if needs_netem(link):
        close["latency (s)"] = (link.latency, delay.get("delay"))
        close["jitter (s)"] = (link.jitter, delay.get("jitter"))
    differences += [
        f"{name}: asked {want:g}, is {have}"
        for name, (want, have) in close.items()
        if have is None or not math.isclose(want, have, rel_tol=2e-3, abs_tol=1.1e-6)
    ]
    if differences:
        raise ShapingError(f"link end {state['interface']}: " + "; ".join(differences))


def queue_drops(net: Mininet, ends: Iterable[End]) -> list[dict[str, Any]]:
    """Cumulative counters of the queues of link ends.

    Returns:
        A dict per end: interface, dropped (packets that found the queue full), sent_packets, sent_bytes
        (Ethernet frames without FCS). Injected losses are not among them.

    Raises:
        ShapingError: a command failed, or an end has lost its root qdisc.
    """
    return [
        {
            "interface": end.interface,
            "dropped": root["drops"],
            "sent_packets": root["packets"],
            "sent_bytes": root["bytes"],
        }
        for end, root in _roots(net, ends)
    ]


def waiting(net: Mininet, ends: Iterable[End]) -> int:
    """Packets that the queues of link ends hold now. Raises ShapingError as `queue_drops` does."""
    return sum(root["qlen"] for _, root in _roots(net, ends))


def drain_time(link: Link) -> float:
    """s that a full queue of a link takes to empty."""
    return queue_limit(link) * frame_bytes(link) * 8 / link.rate


def change_rate(node: Node, interface: str, link: Link) -> None:
    """Give a shaped end another rate, that of `link`; its queue stays.

    Raises:
        ShapingError: the command failed.
    """
    rate = next(command for command in commands(link, interface, "switch") if command[:3] == ["tc", "class", "add"])
    _run(node, [["tc", "class", "change", *rate[3:]]])


def set_link(node: Node, interface: str, state: Literal["up", "down"]) -> None:
    """Set an interface up or down. Raises ShapingError."""
    _run(node, [["ip", "link", "set", "dev", interface, state]])


def _roots(net: Mininet, ends: Iterable[End]) -> Iterator[tuple[End, dict[str, Any]]]:
    """Each end with its root qdisc as tc(8) counts."""
    ends = list(ends)
    qdiscs = {name: _qdiscs(net[name]) for name in _by_node(ends)}
    for end in ends:
        root = next((qdisc for qdisc in qdiscs[end.node].get(end.interface, []) if qdisc.get("root")), None)
        if root is None or root["kind"] != "htb":
            raise ShapingError(f"link end {end.interface}: its HTB root qdisc is gone")
        yield end, root


def _by_node(ends: Iterable[End]) -> dict[str, list[End]]:
    nodes: dict[str, list[End]] = {}
    for end in ends:
        nodes.setdefault(end.node, []).append(end)
    return nodes


def _run(node: Node, commands: Sequence[Sequence[str]]) -> str:
    try:
        return iproute.run(commands, node)
    except iproute.CommandError as error:
        raise ShapingError(f"links of {node.name}: {error}") from None


def _attribute(interface: str, name: str) -> str:
    return f"/sys/class/net/{interface}/{name}"


def _qdiscs(node: Node) -> dict[str, list[dict[str, Any]]]:
    """All that the node has, by interface."""
    found: dict[str, list[dict[str, Any]]] = {}
    for qdisc in json.loads(_run(node, [["tc", "-s", "-j", "qdisc", "show"]])):
        found.setdefault(qdisc["dev"], []).append(qdisc)
    return found


def _rate(klass: str) -> float | None:
    """bit/s out of `tc class show`: iproute2 has no JSON for HTB classes before 6.6."""
    match = re.search(r"\brate ([\d.]+)(\w*bit)\b", klass)
    return float(match[1]) * _UNITS[match[2]] if match else None


def _burst(klass: str) -> float | None:
    match = re.search(r"\bburst ([\d.]+)(b|Kb|Mb)\b", klass)
    return float(match[1]) * {"b": 1, "Kb": 1024, "Mb": 1024**2}[match[2]] if match else None
