"""What a program leaves behind: processes that carry its mark in their environment, and the network they are in."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

MARK = "DBLP_TEST_MARK"
PATIENCE = 30.0      # s; only something that is really left behind reaches it


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def marked(mark: str) -> dict[int, list[str]]:
    """Process id to command line of everything that was started, however indirectly, with this mark."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode().split("\0")[:-1]
        except OSError:
            continue      # it ended meanwhile, or is somebody else's
    return found


def networks() -> dict[str, list[int]]:
    """Network namespace to the processes in it."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.setdefault(os.readlink(entry / "ns/net"), []).append(int(entry.name))
        except OSError:
            continue
    return found


def interfaces() -> set[str]:
    """Network interfaces of this namespace."""
    return {name for _, name in socket.if_nameindex()}


def eventually(holds: Callable[[], bool], within: float = PATIENCE, every: float = 0.05) -> bool:
    """Whether it holds before `within` s are over; looked at every so many s."""
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
