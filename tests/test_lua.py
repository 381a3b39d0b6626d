"""The Wireshark dissector reads what the scapy layer reads. Skipped where tshark is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import golden
import pytest
from captures import step
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from analysis.pcap import channels

SCRIPT = Path(__file__).resolve().parent.parent / "analysis" / "dblp.lua"


def fields(path: Path, wanted: str, *names: str) -> list[list[str]]:
    """tshark's values of these fields in the packets that have `wanted`; several messages of a packet apart."""
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark is not installed (apt install tshark)")
    command = [tshark, "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-d", "tcp.port==7000,dblp_control"]
    command += ["-Y", wanted, "-T", "fields", *(word for name in names for word in ("-e", name))]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [line.split("\t") for line in output.splitlines()]


def test_data_frames(tmp_path: Path) -> None:
    [path, _] = step().write(tmp_path)
    [channel] = channels([path])
    [point] = channel.points
    mine = [
        [str(round_), str(sequence), str(length)]
        for frames in (point.reduce, point.broadcast)
        for _, round_, sequence, length in zip(*(column.tolist() for column in frames), strict=True)
    ]
    theirs = fields(path, "dblp", "dblp.round", "dblp.sequence", "dblp.length")
    assert sorted(theirs) == sorted(mine)


def test_control_messages_also_those_that_span_segments(tmp_path: Path) -> None:
    stream = b"".join(golden.CONTROL.values())
    pieces = [stream[:100], stream[100:350], stream[350:]]      # within HELLO, and between two bytes of a prefix
    packets, sequence = [], 1
    for piece in pieces:
        packets.append(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=7000, seq=sequence, flags="PA") / piece)
        sequence += len(piece)
    wrpcap(str(tmp_path / "golden.pcap"), packets)
    names = ("type", "round", "pass", "stale", "bits", "text")
    rows = fields(tmp_path / "golden.pcap", "dblp_control", *(f"dblp_control.{name}" for name in names))
    types, rounds, passes, stale, bits, text = (
        [value for cell in column for value in cell.split(",") if value] for column in zip(*rows, strict=True)
    )
    assert list(map(int, types)) == list(range(1, 11))
    assert rounds == ["7", "4294967294", "7", "7", "7"]
    assert passes == ["3", "2", "2"]
    assert stale == ["5"]
    assert bits == ["a080", "ffc0"]
    assert text[-1] == "straße"
