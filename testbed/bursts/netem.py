"""Injector for kernels with sch_netem (tc-netem(8)), driven by iproute2.

The port's traffic of one direction detours over an ifb device: clsact on the port, a u32 filter, and mirred's
redirect. On the ifb a two-band prio sends what the burst hits through netem and the rest past it; the packets then go
on from where they left the port, before its rate queue. TCP and UDP share the detour so that a control message
never overtakes the data sent before it. There is no rate on the ifb, hence no queue. A partition loses all in netem and
leaves the rest a queue of no packets.

`seen` counts what has left netem, so copies that it made count too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT
from scenarios.events import LinkImpairment, PartitionEvent
from testbed import iproute
from testbed.bursts import IPPROTO_UDP, Counters, Injector, InjectorError, LinkEnd, LinkKey, actions, is_complete_cut
from testbed.shaping import qdisc_problem

# Packets leave netem as they enter; a limit that is never met, for netem counts what exceeds it as lost.
NETEM_LIMIT = 1_000_000
HIT, REST = "1:1", "1:2"  # bands of the prio
EVERYTHING = ["match", "u32", "0", "0"]


def _match(protocol: str) -> list[str]:
    if protocol == "all":
        return EVERYTHING
    mask = 0x10000 - DATA_PORT_COUNT  # the ports are one aligned block
    # u32 knows ports at a fixed place only: IPv4 headers without options, and no later fragments.
    return [
        *("match", "u8", "0x45", "0xff", "at", "0"),
        *("match", "u16", "0", "0x1fff", "at", "6"),
        *("match", "ip", "protocol", str(IPPROTO_UDP), "0xff"),
        *("match", "ip", "dport", str(DATA_PORT_BASE), f"{mask:#x}"),
    ]


def device(end: LinkEnd) -> str:
    """Name of the ifb of a port's hook, at most 15 characters: `s1-w1i` for what the port receives."""
    return end.interface + end.hook[0]


def commands(end: LinkEnd) -> list[list[str]]:
    """The commands that prepare one link, in order (pure)."""
    ifb = device(end)
    hit = ["protocol", "ip", "prio", "1", "u32"]
    all_ = ["protocol", "all", "prio", "1", "u32"]
    redirect = ["action", "mirred", "egress", "redirect", "dev", ifb]
    root = ["root", "handle", "1:", "prio", "bands", "2", "priomap", *["1"] * 16]
    return [
        ["ip", "link", "add", "name", ifb, "type", "ifb"],
        ["ip", "link", "set", "dev", ifb, "up"],
        ["tc", "qdisc", "add", "dev", ifb, *root],
        ["tc", "qdisc", "add", "dev", ifb, "parent", HIT, "handle", "11:", "netem", "limit", str(NETEM_LIMIT)],
        ["tc", "qdisc", "add", "dev", ifb, "parent", REST, "handle", "12:", "pfifo", "limit", str(NETEM_LIMIT)],
        ["tc", "filter", "add", "dev", ifb, "parent", "1:", *hit, *_match(end.protocol), "flowid", HIT],
        ["tc", "filter", "add", "dev", end.interface, end.hook, *all_, *EVERYTHING, *redirect],
    ]


def options(events: Sequence[LinkImpairment]) -> list[str]:
    """netem's options for what is in force on a link (pure).

    All that netem keeps from one change to the next unless told otherwise (correlations, corruption) is named.
    """
    words = {name: [name, actions.percent(0), actions.percent(0)] for name in ("loss", "duplicate", "corrupt")}
    for event in sorted(events, key=lambda event: isinstance(event, PartitionEvent)):  # a cut is stronger than a loss
        words |= actions.module(event).netem(event)
    return ["limit", str(NETEM_LIMIT), *(word for part in words.values() for word in part)]


class NetemInjector(Injector):
    """See :class:`testbed.bursts.Injector`. Its devices live in the network namespace of the switch."""

    name = "netem"

    def __init__(self) -> None:
        self._ends: dict[LinkKey, LinkEnd] = {}
        self._ports: set[str] = set()

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        self._ends = {end.key: end for end in links}
        self._ports = {end.interface for end in links}
        plan = [["tc", "qdisc", "add", "dev", port, "clsact"] for port in sorted(self._ports)]
        plan += [command for end in links for command in commands(end)]
        try:
            _run(sorted(plan, key=lambda command: command[0] != "ip"))  # devices first
        except InjectorError:
            self.close()
            raise

    def set(self, changes: Mapping[LinkKey, Sequence[LinkImpairment]]) -> None:
        plan = []
        for (host, direction), events in changes.items():
            if (host, direction) not in self._ends:
                raise InjectorError(f"events on {host} {direction}: this link was not prepared")
            change = ["tc", "qdisc", "change", "dev", device(self._ends[host, direction]), "parent"]
            rest = 0 if any(map(is_complete_cut, events)) else NETEM_LIMIT
            plan += [
                [*change, HIT, "handle", "11:", "netem", *options(events)],
                [*change, REST, "handle", "12:", "pfifo", "limit", str(rest)],
            ]
        _run(plan)

    def counters(self) -> dict[LinkKey, Counters]:
        qdiscs: list[dict[str, Any]] = json.loads(_run([["tc", "-s", "-j", "qdisc", "show"]]))
        found = {(qdisc["dev"], qdisc["kind"]): qdisc for qdisc in qdiscs}
        counts = {}
        for key, end in self._ends.items():
            netem, rest = (found[device(end), kind] for kind in ("netem", "pfifo"))
            dropped = netem["drops"] + rest["drops"]
            counts[key] = Counters(netem["packets"] + netem["qlen"] + dropped, dropped)
        return counts

    def close(self) -> None:
        # Called after half-done work too, so a command that finds nothing to delete is no error.
        while self._ports:
            subprocess.run(["tc", "qdisc", "del", "dev", self._ports.pop(), "clsact"], capture_output=True, check=False)
        while self._ends:
            _, end = self._ends.popitem()
            subprocess.run(["ip", "link", "del", "dev", device(end)], capture_output=True, check=False)


@cache
def netem_problem() -> str | None:
    """Why this kernel cannot run the injector, or None when a throw-away namespace accepts all of it.

    Needs root.
    """
    problem = qdisc_problem("netem") or qdisc_problem("clsact")
    if problem:
        return problem
    trial = commands(LinkEnd("try", "to_server", "lo", "udp", "ingress"))
    script = "\n".join(["set -e", "tc qdisc add dev lo clsact", *(" ".join(words) for words in trial)])
    attempt = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True)
    if attempt.returncode == 0:
        return None
    return (
        f"{' '.join(attempt.stderr.split())} (kernel options CONFIG_IFB, CONFIG_NET_SCH_PRIO, "
        "CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED)"
    )


def _run(plan: Sequence[Sequence[str]]) -> str:
    try:
        return iproute.run(plan)
    except iproute.CommandError as error:
        raise InjectorError(str(error)) from None
