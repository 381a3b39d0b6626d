"""Action `delay`: latency, jitter, and how the delays are distributed."""

from __future__ import annotations

from scenarios.events import DelayEvent
from testbed.bursts.actions import NO_LINK, microseconds, percent


def netem(event: DelayEvent) -> dict[str, list[str]]:
    words = ["delay", microseconds(event.latency)]
    if event.jitter:
        words += [microseconds(event.jitter), percent(event.correlation)]
        if event.distribution != "uniform":  # netem's own default, for which tc has no table
            words += ["distribution", event.distribution]
    return {"delay": words}


def bpf_problem(event: DelayEvent) -> str | None:
    return "a BPF program cannot hold a packet back"


def local_problem(event: DelayEvent) -> str | None:
    return NO_LINK
