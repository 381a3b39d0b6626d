"""Action `duplicate`: datagrams arrive twice. The injector's `seen` counts the copies, too, where netem makes them."""

from __future__ import annotations

from scenarios.events import DuplicateEvent
from testbed.bursts.actions import NO_LINK, percent


def netem(event: DuplicateEvent) -> dict[str, list[str]]:
    return {"duplicate": ["duplicate", percent(event.duplicate), percent(event.correlation)]}


def bpf_problem(event: DuplicateEvent) -> str | None:
    return "the BPF injector draws duplicates without correlation" if event.correlation else None


def local_problem(event: DuplicateEvent) -> str | None:
    return NO_LINK
