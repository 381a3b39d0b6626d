"""What was lost between the ports of the switches, held against what injector and queues have dropped.

Some events make or take packets that no counter tells. Each gets a bound, from the log of the run and the captures
themselves; a balance that is off by more has no explanation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from analysis.pcap import Channel
from analysis.wire import Link, entry
from scenarios import Scenario
from scenarios.topology import SERVER, Topology

Hop = tuple[str, str]       # from a node to the next one
WAY_OF = {"reduce": "to_server", "broadcast": "to_worker"}
FLIP_S = 0.5                # s at most that an event is in force before its start is logged
DEVIATIONS = 5              # of a binomial that copies and damages stay within


@dataclass(frozen=True)
class Balance:
    """Ways of gradients that share what dropped their packets, so that only their sum can be told.

    Attributes:
        where: `w1, w2 to srv`.
        lost: packets that entered the switches and did not leave them.
        dropped: by injector and queues on the way.
        fewer, more: how far `lost` may be below and above `dropped` by what no counter tells.
        why: what that is.
    """

    where: str
    lost: int
    dropped: int
    fewer: int
    more: int
    why: str

    def explains(self, uncaptured: int) -> bool:
        """Whether it is settled, given so many packets that the captures dropped."""
        return -self.fewer - uncaptured <= self.lost - self.dropped <= self.more + uncaptured


def balances(
    scenario: Scenario, log: Sequence[dict[str, Any]], ends: Sequence[Link], found: Sequence[Channel]
) -> list[Balance]:
    """The balance of all ways whose two ends were captured, given the run's `events.jsonl` from start to end."""
    topology, last = scenario.topology, log[-1]
    dropped = _dropped(topology, last)
    ways = {(each.worker, each.direction): _hops(topology, each.worker, each.direction) for each in ends}
    groups: list[set[tuple[str, str]]] = []
    for key in ((worker, direction) for direction in WAY_OF for worker in topology.worker_names):
        shared = {hop for hop in _hops(topology, *key) if dropped.get(hop)}
        meeting = [group for group in groups if any(shared & set(_hops(topology, *other)) for other in group)]
        groups = [group for group in groups if group not in meeting] + [{key}.union(*meeting)]
    of = {(each.worker, each.direction): each for each in ends}
    channels = {channel.worker: channel for channel in found}
    result = []
    for group in groups:
        if not group <= ways.keys():
            continue  # of what they share, others had a part that was not captured
        hops = {hop for key in group for hop in ways[key]}
        members = [of[key] for key in sorted(group)]
        lost = sum(each.frames_lost + each.segments_lost for each in members)
        bounds = list(_untold(scenario, log, hops, members, channels))
        result.append(Balance(
            _name(members), lost, sum(dropped.get(hop, 0) for hop in hops),
            sum(fewer for fewer, _, _ in bounds), sum(more for _, more, _ in bounds),
            "; ".join(why for _, _, why in bounds),
        ))
    return result


def _name(members: Sequence[Link]) -> str:
    hosts = ", ".join(each.worker for each in members)
    return f"{hosts} to {SERVER}" if members[0].direction == "reduce" else f"{SERVER} to {hosts}"


def _hops(topology: Topology, worker: str, direction: str) -> list[Hop]:
    path = topology.path(worker, SERVER)
    return list(pairwise(path if direction == "reduce" else path[::-1]))


def _link_hop(topology: Topology, name: str, direction: str) -> Hop:
    """A link in the direction `to_server` or `to_worker`."""
    cable = topology.cable(name)
    sender = topology.sender(cable, direction)
    return (cable.lower, cable.upper) if sender == cable.lower else (cable.upper, cable.lower)


def _dropped(topology: Topology, line: Mapping[str, Any]) -> dict[Hop, int]:
    """By injector and by queues of switches, cumulative, as a line of the log has it."""
    dropped = _queued(topology, line)
    for each in line["counters"]:
        hop = _link_hop(topology, each["host"], each["direction"])
        dropped[hop] = dropped.get(hop, 0) + each["dropped"]
    return dropped


def _queued(topology: Topology, line: Mapping[str, Any]) -> dict[Hop, int]:
    """By the queues of switches, whose ports are named `switch-peer`."""
    queues = {each["interface"]: each["dropped"] for each in line["queues"]}
    ways = [(one, two) for cable in topology.cables() for one, two in (cable[:2], cable[1::-1])]
    return {(one, two): queues.get(f"{one}-{two}", 0) for one, two in ways if one in topology.switches}


def _untold(
    scenario: Scenario, log: Sequence[dict[str, Any]], hops: set[Hop], members: Sequence[Link],
    channels: Mapping[str, Channel],
) -> Iterator[tuple[int, int, str]]:
    """(fewer, more, why) of each event that makes or takes packets on these hops which no counter tells."""
    topology, last = scenario.topology, log[-1]
    for index, event in enumerate(scenario.events):
        bursts = list(_bursts(log, index))
        name = f"events.{index} ({event.action})"
        met = [link for link in event.links(topology) if _link_hop(topology, *link) in hops]
        if not bursts or not (met or event.action == "traffic"):
            continue
        match event.action:
            case "duplicate" | "corrupt":
                share = getattr(event, event.action)
                seen = sum(_seen(stop, link) - _seen(start, link) for start, stop in bursts for link in met)
                most = seen if event.correlation else at_most(seen, share)
                if event.action == "duplicate":
                    yield most, 0, f"{name} made at most {most} copies"
                else:
                    yield 0, most, f"{name} damaged at most {most} packets beyond recognition"
            case "traffic":
                begun, ended = _queued(topology, bursts[0][0]), _queued(topology, last)
                most = sum(ended[hop] - begun[hop] for hop in hops & ended.keys())
                if most:
                    yield most, 0, f"{name} had at most {most} of the drops of shared queues"
            case "link_down":
                entered = sum(_entered(channels[each.worker], each.direction, bursts) for each in members)
                queues = [link for link in met if _link_hop(topology, *link)[0] in topology.switches]
                waiting = sum(topology.cable(link).link.limit for link, _ in queues) * len(bursts)
                segments = sum(max(each.segments_lost, 0) for each in members)
                yield 0, entered + waiting + segments, (
                    f"{name} took at most the {entered} frames that entered meanwhile, {waiting} in queues, and TCP "
                    f"segments, of which only the number is known: {segments}"
                )


def at_most(draws: int, share: float) -> int:
    """Hits of so many independent draws that practically never are exceeded."""
    return min(draws, math.ceil(draws * share + DEVIATIONS * math.sqrt(draws * share * (1 - share))))


def _bursts(log: Sequence[dict[str, Any]], index: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(start, stop) lines of an event."""
    start = None
    for line in log:
        if line.get("event") == index and line["kind"] == "burst_start":
            start = line
        elif line.get("event") == index and line["kind"] == "burst_stop" and start:
            yield start, line
            start = None


def _seen(line: Mapping[str, Any], link: tuple[str, str]) -> int:
    return sum(each["seen"] for each in line["counters"] if (each["host"], each["direction"]) == link)


def _entered(channel: Channel, direction: str, bursts: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """Data frames that entered the switches while an event was in force."""
    times = getattr(entry(channel, direction), direction).time / 1e9
    spans = [[datetime.fromisoformat(line["wall"]).timestamp() for line in burst] for burst in bursts]
    return int(sum(((times >= start - FLIP_S) & (times <= stop)).sum() for start, stop in spans))
