"""Packets for tests of what reads captures: a small exchange as two ports of a switch would see it."""

from __future__ import annotations

import json
from pathlib import Path

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import wrpcap

from analysis.dissector import Bitmap, Challenge, Control, DataFrame, Json, Probe, Round, Stop

SERVER, WORKER = ("10.0.0.1", 7000), ("10.0.0.2", 40000)
DATA = {"up": ("10.0.0.2", 52352, "10.0.0.1", 52224), "down": ("10.0.0.1", 52224, "10.0.0.2", 52352)}
SESSION, CHUNKS, CHUNK_BYTES, LAST_BYTES = 0xDEADBEEF, 10, 64, 8
PORT_TO_PORT = 0.001     # s from one port of the switch to the other
START = 1_700_000_000


class Exchange:
    """Two ports, `s1-w1` and `s1-srv`; times in ms since the start."""

    def __init__(self) -> None:
        self.ports: dict[str, list[Packet]] = {"s1-w1": [], "s1-srv": []}
        self._sequence = {"up": 2**32 - 40, "down": 77}      # the worker's wraps

    def frame(self, way: str, at: float, round_: int, sequence: int, lost: bool = False) -> None:
        """A data frame at its first port, and unless it is lost 1 ms later at the other."""
        source, sport, target, dport = DATA[way]
        length = LAST_BYTES if sequence == CHUNKS - 1 else CHUNK_BYTES
        data = DataFrame(session=SESSION, round=round_, sequence=sequence, length=length, chunk=bytes(length))
        self._pass(way, at, IP(src=source, dst=target) / UDP(sport=sport, dport=dport) /
                   (bytes(data).ljust(16 + CHUNK_BYTES, b"\0")), lost)

    def say(self, way: str, at: float, *messages: Packet, cut: int | None = None, swap: bool = False) -> None:
        """Control messages in one segment, or cut into two, which may come in the wrong order."""
        stream = b"".join(bytes(message) for message in messages)
        pieces = [(0, stream)] if cut is None else [(0, stream[:cut]), (cut, stream[cut:])]
        for place, (offset, piece) in enumerate(reversed(pieces) if swap else pieces):
            self._segment(way, at + place, offset, piece)
        self._sequence[way] = (self._sequence[way] + len(stream)) % 2**32

    def again(self, way: str, at: float, size: int) -> None:
        """TCP sends its last `size` bytes again: they must count once. Their content is not looked at."""
        self._segment(way, at, -size, b"?" * size)

    def open(self) -> None:
        """Connection and handshake, from 0 to 5 ms."""
        for way, flags in (("up", "S"), ("down", "SA")):
            self._segment(way, 0, -1, b"", flags)
        hello = {"version": 1, "rank": 0, "name": "w1", "udp_port": 52352, "frame_bytes": 16 + CHUNK_BYTES,
                 "size_bytes": 584, "chunks": CHUNKS, "tensors": [], "nonce": "00", "mac": ""}
        welcome = {"version": 1, "session": SESSION, "udp_port": 52224, "workers": 1, "share": None,
                   "order": "sequential", "error_feedback": False, "mac": ""}
        self.say("down", 1, Control(type=1) / Challenge(nonce=bytes(16)))
        self.say("up", 2, Control(type=2) / Json(text=json.dumps(hello)), cut=60, swap=True)
        self.say("down", 4, Control(type=3) / Json(text=json.dumps(welcome)), round_message(0, 0.2))
        self.again("down", 5, 18)

    def write(self, folder: Path) -> list[Path]:
        """The captures as files."""
        paths = []
        for port, packets in self.ports.items():
            paths.append(folder / f"{port}.pcap")
            wrpcap(str(paths[-1]), packets, nano=True)
        return paths

    def _segment(self, way: str, at: float, offset: int, data: bytes, flags: str = "PA") -> None:
        ends = (WORKER, SERVER) if way == "up" else (SERVER, WORKER)
        (source, sport), (target, dport) = ends
        sequence = (self._sequence[way] + offset) % 2**32
        header = TCP(sport=sport, dport=dport, seq=sequence, flags=flags)
        self._pass(way, at, IP(src=source, dst=target) / header / data)

    def _pass(self, way: str, at: float, packet: Packet, lost: bool = False) -> None:
        order = ("s1-w1", "s1-srv") if way == "up" else ("s1-srv", "s1-w1")
        for port, delay in zip(order[: 1 if lost else 2], (0.0, PORT_TO_PORT), strict=False):
            copy = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / packet.copy()
            copy.time = START + at / 1000 + delay
            self.ports[port].append(copy)


def bits(*chunks: int) -> bytes:
    """The bitmap with these of the `CHUNKS` chunks."""
    return sum(1 << (15 - chunk) for chunk in chunks).to_bytes(2, "big")


def round_message(round_: int, tolerance: float, in_clr: bool = False) -> Packet:
    """A ROUND."""
    return Control(type=4) / Round(round=round_, tolerance=tolerance, in_clr=in_clr)


def step() -> Exchange:
    """One reduce in two passes (3 frames lost, one arriving twice, one after STOP), and a broadcast without loss."""
    exchange = Exchange()
    exchange.open()
    for sequence in range(CHUNKS):
        exchange.frame("up", 10 + sequence, 0, sequence, lost=sequence in (3, 4, 5))
    exchange.frame("up", 20, 0, 2)
    exchange.say("up", 21, Control(type=5) / Probe(round=0, pass_=1))
    exchange.say("down", 23, Control(type=6) / Bitmap(round=0, pass_=1, bits=bits(0, 1, 2, 6, 7, 8, 9)), cut=3)
    exchange.frame("up", 26, 0, 3)
    exchange.frame("up", 27, 0, 4)
    delivered = bits(0, 1, 2, 3, 6, 7, 8, 9)
    exchange.say("down", 27.5, Control(type=8) / Stop(round=0, stale=0, duplicate=1, bits=delivered))
    exchange.say("down", 29, round_message(1, 0.0), round_message(2, 0.0, True))
    for sequence in range(CHUNKS):
        exchange.frame("down", 30 + sequence, 1, sequence)
    exchange.say("down", 40, Control(type=5) / Probe(round=1, pass_=1))
    exchange.say("up", 42, Control(type=8) / Stop(round=1, stale=0, duplicate=0, bits=bits(*range(10))))
    return exchange
