"""A sender and a sink of cross traffic: `python -m testbed.bursts.crosstraffic udp|tcp|udp-sink|tcp-sink ...`.

It stands ready, begins at the line `start` on its standard input and pauses at `stop`; at each stop it prints what it
has sent so far. Standard library alone, so that it starts at once.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time

UDP_SEGMENT = 103  # linux/udp.h
SO_SNDBUFFORCE = 32  # asm-generic/socket.h
BATCH = 16  # datagrams a call: a short train, as an interrupt-driven NIC would send
TICK = 0.001  # s


class Control:
    """The lines on standard input."""

    def __init__(self) -> None:
        self.on = self.ended = False
        self._rest = b""

    def wait(self, timeout: float | None) -> bool:
        """Wait for lines, at most so long; whether one of them was `stop`."""
        if not select.select([0], [], [], timeout)[0]:
            return False
        data = os.read(0, 4096)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.on = line == b"start"
        return b"stop" in lines


def say(datagrams: int, size: int) -> None:
    print(json.dumps({"datagrams": datagrams, "bytes": size}), flush=True)


def send_udp(target: tuple[str, int], rate: float, payload: int) -> None:
    """Datagrams of `payload` bytes at `rate` bit/s of Ethernet frames, whether the network takes them or not."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # A datagram stays charged to this buffer until somebody reads or drops it. A small buffer would throttle the
    # sender as no real network could.
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, payload)
    sock.connect(target)
    train = bytes(payload * BATCH)
    frame_bits = 8 * (payload + 42)
    control, sent = Control(), 0
    begin, credit = 0.0, 0
    while not control.ended:
        if not control.on:
            if control.wait(None):
                say(sent, sent * payload)
            begin, credit = time.monotonic(), 0
            continue
        due = int((time.monotonic() - begin) * rate / frame_bits)
        while credit + BATCH <= due:
            try:
                sock.send(train)
                sent += BATCH
            except OSError:  # the device's queue is full, or nobody listens: lost like any datagram
                pass
            credit += BATCH
        if control.wait(TICK):
            say(sent, sent * payload)


def send_tcp(target: tuple[str, int], flows: int) -> None:
    """Bulk flows with the kernel's congestion control."""
    sockets = [socket.create_connection(target, timeout=10) for _ in range(flows)]
    for sock in sockets:
        sock.setblocking(False)
    data = bytes(1 << 17)
    control, sent = Control(), 0
    while not control.ended:
        if not control.on:
            if control.wait(None):
                say(0, sent)
            continue
        for sock in select.select([], sockets, [], TICK)[1]:
            try:
                sent += sock.send(data)
            except BlockingIOError:
                continue
        if control.wait(0):
            say(0, sent)


def receive_udp(port: int) -> None:
    """Bound, so that no ICMP answers, and never read: the kernel drops what exceeds a small buffer, at no cost."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind(("", port))
    print("{}", flush=True)
    sys.stdin.read()


def receive_tcp(port: int) -> None:
    """Reads and forgets (MSG_TRUNC: without a copy, tcp(7))."""
    listener = socket.create_server(("", port))
    print("{}", flush=True)
    sockets: list[socket.socket] = []
    while True:
        for ready in select.select([listener, sys.stdin, *sockets], [], [])[0]:
            if ready is sys.stdin:
                return
            if ready is listener:
                sockets.append(listener.accept()[0])
            elif not ready.recv(1 << 22, socket.MSG_TRUNC):
                sockets.remove(ready)
                ready.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["udp", "tcp", "udp-sink", "tcp-sink"])
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, help="bit/s, udp")
    parser.add_argument("--payload", type=int, help="bytes, udp")
    parser.add_argument("--flows", type=int, default=1, help="tcp")
    given = parser.parse_args()
    match given.role:
        case "udp":
            send_udp((given.host, given.port), given.rate, given.payload)
        case "tcp":
            send_tcp((given.host, given.port), given.flows)
        case "udp-sink":
            receive_udp(given.port)
        case "tcp-sink":
            receive_tcp(given.port)


if __name__ == "__main__":
    main()
