"""When nothing that this process has sent over TCP is on its way, for the gate."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable

POLL = 0.001      # s between looks at SIOCOUTQ, which no event announces


def unacknowledged() -> int:
    """Bytes that this process has sent over TCP and no peer's kernel has acknowledged (SIOCOUTQ, tcp(7)).

    Looks at all sockets of the process, since a library does not hand out its own.
    """
    waiting = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):      # closed meanwhile, or listening
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM:
                    waiting += struct.unpack("i", fcntl.ioctl(copy, termios.TIOCOUTQ, b"\0" * 4))[0]
    return waiting


class Quiet:
    """What the gate asks of an end that keeps no event loop: between rounds there is nothing to serve."""

    def run_until_idle(self) -> None:
        """Wait until the peers have acknowledged everything."""
        while unacknowledged():
            time.sleep(POLL)

    def run(self, until: Callable[[], bool], wake: int) -> None:
        """Wait until `until()` holds; `wake` is a file descriptor that makes it look."""
        while not until():
            select.select([wake], [], [])
