"""Action `partition`: nothing passes. With `protocol: all`, the default, no frame of any protocol does."""

from __future__ import annotations

from scenarios.events import PartitionEvent
from testbed.bursts.actions import percent


def netem(event: PartitionEvent) -> dict[str, list[str]]:
    return {"loss": ["loss", percent(1), percent(0)]}


def bpf_problem(event: PartitionEvent) -> str | None:
    return None


def local_problem(event: PartitionEvent) -> str | None:
    return None if event.protocol == "udp" else "protocol 'all' also cuts TCP, which engine local has no link for"
