"""A sender and a sink of cross traffic: `python -m testbed.bursts.crosstraffic udp|tcp|udp-sink|tcp-sink ...`.

It stands ready, begins at the line `start` on its standard input and pauses at `stop`; at each stop it prints what it
has sent so far, once nothing of it is on its way. Standard library alone, so that it starts at once.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import select
import socket
import struct
import sys
import termios
import time

UDP_SEGMENT = 103  # linux/udp.h
SO_SNDBUFFORCE = 32  # asm-generic/socket.h
SO_ATTACH_FILTER = 26
TCP_NOTSENT_LOWAT = 25  # linux/tcp.h
BATCH = 16  # datagrams a call: a short train, as an interrupt-driven NIC would send
TICK = 0.001  # s
UNSENT = 1 << 17  # bytes that a TCP socket holds beyond what is under way
PATIENCE = 5.0  # s for what is under way to arrive; longer only where nothing arrives at all


class Control:
    """The lines on standard input. Says that it is ready for them."""

    def __init__(self) -> None:
        self.on = self.ended = False
        self._rest = b""
        print("{}", flush=True)

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


def say(sockets: list[socket.socket], datagrams: int, size: int) -> None:
    """Report what was sent, when it has arrived or is lost (SIOCOUTQ, udp(7) and tcp(7))."""
    deadline = time.monotonic() + PATIENCE
    while any(outgoing(sock) for sock in sockets) and time.monotonic() < deadline:
        time.sleep(TICK)
    print(json.dumps({"datagrams": datagrams, "bytes": size}), flush=True)


def outgoing(sock: socket.socket) -> int:
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]


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
                say([sock], sent, sent * payload)
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
            say([sock], sent, sent * payload)


def send_tcp(target: tuple[str, int], flows: int) -> None:
    """Bulk flows with the kernel's congestion control."""
    sockets = [socket.create_connection(target, timeout=10) for _ in range(flows)]
    for sock in sockets:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)  # or a pause would begin megabytes later
    data = bytes(1 << 17)
    control, sent = Control(), 0
    while not control.ended:
        if not control.on:
            if control.wait(None):
                say(sockets, 0, sent)
            continue
        for sock in select.select([], sockets, [], TICK)[1]:
            try:
                sent += sock.send(data)
            except BlockingIOError:
                continue
        if control.wait(0):
            say(sockets, 0, sent)


def receive_udp(port: int) -> None:
    """Bound, so that no ICMP answers; a filter (socket(7)) that passes nothing drops all in the kernel, at no cost."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, 0 bytes
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(nothing)))
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
