"""Writes what crosses the switch ports to pcap files, in a process of its own.

    python -m testbed.capture FOLDER MTU INTERFACE...

Two packet sockets a port (packet(7)): data frames cut after their headers, and TCP whole, since control messages must
be put together again. A port's tap sees what comes in before the injector and what goes out after injector and queue
(net/core/dev.c), so a frame that was lost is in the file of one port and not in that of the other. Offloads are off on
the switch (`testbed.shaping`), so packets are single.

The kernel writes into memory-mapped rings of fixed slots (TPACKET_V2, Documentation/networking/packet_mmap.rst); whole
runs of slots are copied at once, without Python code per packet. Nanosecond pcap, Ethernet. `capture.json` says how
many packets each ring took, and how many it had to drop.

Standard output says `ready` once all taps are open; the end of standard input ends the capture.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT, ETHERNET_HEADER
from testbed.errors import UserError

CAPTURES, SUMMARY = "captures", "capture.json"
DATA_SNAPLEN = 96               # bytes: Ethernet, IPv4 with a few options, UDP and the frame's header
RING_BYTES = {"data": 16 << 20, "control": 8 << 20}     # data: 0.8 s of full frames at 1 Gbit/s
DRAIN_INTERVAL = 0.02           # s between looks at the rings
STOP_SECONDS = 60.0             # s that the writer has to empty its rings

# linux/if_packet.h, asm/socket.h
SOL_PACKET, PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, TPACKET_V2 = 263, 5, 6, 10, 1
SO_ATTACH_FILTER = 26
ETH_P_ALL, ETH_P_IP = 0x0003, 0x0800
TP_STATUS_USER = 1
TP_MAC = 66                     # offset of the packet in a slot, on Ethernet
BLOCK_BYTES = 1 << 20
SLOT_HEADER = np.dtype([
    ("status", "u4"), ("length", "u4"), ("captured", "u4"), ("mac", "u2"), ("net", "u2"), ("sec", "u4"), ("nsec", "u4"),
])
RECORD_HEADER = 16
# magic of nanosecond stamps, version 2.4, zone, accuracy, snaplen, LINKTYPE_ETHERNET
PCAP_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1)


class CaptureError(UserError):
    """Nothing can be captured here, or the capture ended early; the text says why."""


# Classic BPF (Documentation/networking/filter.rst): (code, jump if true, jump if false, constant). What a program
# returns is the number of bytes to keep.
_IPV4 = [(0x28, 0, 0, 12), (0x15, 1, 0, ETH_P_IP), (0x06, 0, 0, 0), (0x30, 0, 0, 23)]
_KEEP = (0x06, 0, 0, 1 << 18)
FILTERS = {
    "control": [*_IPV4, (0x15, 1, 0, socket.IPPROTO_TCP), (0x06, 0, 0, 0), _KEEP],
    "data": [
        *_IPV4, (0x15, 1, 0, socket.IPPROTO_UDP), (0x06, 0, 0, 0),
        (0x28, 0, 0, 20), (0x45, 4, 0, 0x1FFF),                            # later fragments hold no ports
        (0xB1, 0, 0, 14), (0x48, 0, 0, 16),                                # destination port
        (0x35, 0, 1, DATA_PORT_BASE), (0x25, 0, 1, DATA_PORT_BASE + DATA_PORT_COUNT - 1),
        (0x06, 0, 0, 0), (0x06, 0, 0, DATA_SNAPLEN),
    ],
}


class _Tap:
    """One kind of packet on one port."""

    def __init__(self, interface: str, kind: str, slot_bytes: int, output: BinaryIO) -> None:
        size = RING_BYTES[kind]
        self._slot_bytes, self._output = slot_bytes, output
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)      # no packets before the filter
        code = b"".join(struct.pack("=HBBI", *step) for step in FILTERS[kind])
        instructions = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        self._socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V2)
        request = struct.pack("=IIII", BLOCK_BYTES, size // BLOCK_BYTES, slot_bytes, size // slot_bytes)
        self._socket.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
        self._slots = np.frombuffer(mmap.mmap(self._socket.fileno(), size), np.uint8).reshape(-1, slot_bytes)
        self._status = self._slots.view("u4")[:, 0]
        self._position = 0
        self._socket.bind((interface, ETH_P_ALL))

    def drain(self) -> int:
        """Write the slots that are filled, up to the end of the ring; how many."""
        filled = self._status[self._position :] & TP_STATUS_USER
        count = len(filled) if filled.all() else int(filled.argmin())
        if not count:
            return 0
        run = slice(self._position, self._position + count)
        slots = self._slots[run]
        header = slots[:, : SLOT_HEADER.itemsize].copy().view(SLOT_HEADER)[:, 0]
        captured = int(header["captured"].max())
        records = np.empty((count, RECORD_HEADER + captured), np.uint8)
        words = np.stack([header[name] for name in ("sec", "nsec", "captured", "length")], axis=1)
        records[:, :RECORD_HEADER] = np.ascontiguousarray(words, "=u4").view(np.uint8)
        records[:, RECORD_HEADER:] = slots[:, TP_MAC : TP_MAC + captured]
        self._status[run] = 0
        self._position = (self._position + count) % len(self._slots)
        if (header["captured"] != captured).any():
            records = records[np.arange(records.shape[1]) < RECORD_HEADER + header["captured"][:, None]]
        self._output.write(records.tobytes())
        return count

    def statistics(self) -> dict[str, int]:
        """Packets that passed the filter since the beginning, and those of them that found the ring full."""
        packets, dropped = struct.unpack("=II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        return {"packets": packets, "dropped": dropped}


def write(folder: Path, mtu: int, interfaces: Sequence[str]) -> None:
    """Capture on `interfaces` into `folder` until standard input ends."""
    whole_packet = TP_MAC + ETHERNET_HEADER + mtu
    slot_bytes = {"data": 256, "control": 1 << (whole_packet - 1).bit_length()}
    files, taps = [], {}
    for interface in interfaces:
        file = (folder / f"{interface}.pcap").open("wb", buffering=0)
        file.write(PCAP_HEADER)
        files.append(file)
        for kind in FILTERS:
            taps[interface, kind] = _Tap(interface, kind, slot_bytes[kind], file)
    print("ready", flush=True)
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], DRAIN_INTERVAL)[0])
        while any([tap.drain() for tap in taps.values()]):
            pass
    summary: dict[str, dict[str, dict[str, int]]] = {interface: {} for interface in interfaces}
    for (interface, kind), tap in taps.items():
        summary[interface][kind] = tap.statistics()
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    for file in files:
        file.close()


class Capture:
    """The writer's process, as a context manager: captures between enter and exit.

    Args:
        folder: for the pcap files; made if need be.
        mtu: bytes of the links' largest IP packet.
        interfaces: the ports, in this network namespace.
        log: where the writer's last words go.

    Raises:
        CaptureError: on enter, no tap could be opened; on exit, the writer had ended early.
    """

    def __init__(self, folder: Path, mtu: int, interfaces: Sequence[str], log: Path) -> None:
        self._command = [sys.executable, "-m", "testbed.capture", str(folder), str(mtu), *interfaces]
        self._folder, self._log = folder, log

    def __enter__(self) -> Capture:
        self._folder.mkdir(exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        if self._process.stdout.readline() != b"ready\n":
            self._process.kill()
            raise CaptureError(f"no capture: {self._last_words()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._process.stdin.close()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if status and kind is None:
            raise CaptureError(f"the capture ended with status {status}: {self._last_words()}")

    def _last_words(self) -> str:
        self._process.wait()
        lines = self._log.read_text().strip().splitlines()
        return lines[-1] if lines else f"no output; see {self._log}"


def main(argv: list[str]) -> int:
    """`FOLDER MTU INTERFACE...`; only the end of standard input ends it, so that what is in the rings is kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(Path(argv[0]), int(argv[1]), argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
