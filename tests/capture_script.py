"""A ring that is too small for what comes, on the loopback device of a network namespace of its own.

Prints JSON: what the tap says of itself, and what its file holds. Run by tests/test_capture.py.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from analysis.pcap import read
from testbed import capture

PORT, COUNT, SLOTS, SLOT_BYTES = 52224, 3000, 4096, 256
FRAME = bytes([1]) + bytes(199)


def main() -> None:
    """Send more than the ring holds, drain it, and again as much as it holds."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    capture.RING_BYTES["data"] = SLOTS * SLOT_BYTES
    path = Path(tempfile.mkdtemp()) / "lo.pcap"
    with path.open("wb") as file, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        file.write(capture.PCAP_HEADER)
        tap = capture._Tap("lo", "data", SLOT_BYTES, file)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader:
            reader.bind(("127.0.0.1", PORT))
            for count in (COUNT, SLOTS // 2):       # loopback shows each packet on its way out and in
                for _ in range(count):
                    sender.sendto(FRAME, ("127.0.0.1", PORT))
                    sender.sendto(FRAME, ("127.0.0.1", PORT - 1))       # outside of the data block: not counted
                while tap.drain():
                    pass
        statistics = tap.statistics()
    packets = read(path)
    json.dump(
        {**statistics, "records": len(packets.time), "captured": sorted({*packets.captured.tolist()}),
         "length": sorted({*packets.length.tolist()})},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
