"""Action `corrupt`: one bit is flipped, and the receiving host drops the datagram by its checksum.

netem computes the checksum first where the sender left that to the device, so a veth pair is no exception.
"""

from __future__ import annotations

from scenarios.events import CorruptEvent
from testbed.bursts.actions import NO_LINK, percent


def netem(event: CorruptEvent) -> dict[str, list[str]]:
    return {"corrupt": ["corrupt", percent(event.corrupt), percent(event.correlation)]}


def bpf_problem(event: CorruptEvent) -> str | None:
    return "a BPF program cannot make up checksums that the device still has to fill in, so hosts would not notice"


def local_problem(event: CorruptEvent) -> str | None:
    return NO_LINK
