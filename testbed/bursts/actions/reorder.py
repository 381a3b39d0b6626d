"""Action `reorder`: a share of the datagrams goes at once, the others are late."""

from __future__ import annotations

from scenarios.events import ReorderEvent
from testbed.bursts.actions import NO_LINK, microseconds, percent


def netem(event: ReorderEvent) -> dict[str, list[str]]:
    overtaking = ["reorder", percent(event.reorder), percent(event.correlation), "gap", str(event.gap)]
    return {"delay": ["delay", microseconds(event.latency)], "reorder": overtaking}


def bpf_problem(event: ReorderEvent) -> str | None:
    return "a BPF program cannot hold a packet back for others to overtake"


def local_problem(event: ReorderEvent) -> str | None:
    return NO_LINK
