"""The scapy layer against the golden bytes of the wire format, and against bytes that nobody should send."""

from __future__ import annotations

import golden
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Padding, Raw

from analysis.dissector import (
    Bitmap,
    Challenge,
    Control,
    DataFrame,
    Json,
    Probe,
    Progress,
    Round,
    Stop,
    Text,
    bind_control,
    control_messages,
)

FIELDS = {
    "Challenge": (Challenge, {"version": 1, "nonce": bytes(range(16))}),
    "Round": (Round, {"round": 7, "tolerance": 0.5, "in_clr": 1}),
    "Probe": (Probe, {"round": 0xFFFFFFFE, "pass_": 3}),
    "Bitmap": (Bitmap, {"round": 7, "pass_": 2, "bits": b"\xa0\x80"}),
    "Progress": (Progress, {"round": 7, "pass_": 2, "delivered": 1000, "sequence": 1234}),
    "Stop": (Stop, {"round": 7, "stale": 5, "duplicate": 6, "bits": b"\xff\xc0"}),
    "Error": (Text, {"text": "straße".encode()}),
}


def test_data_frames_decode_from_the_golden_bytes() -> None:
    first, last = map(DataFrame, golden.FRAMES)
    header = {"version": 1, "flags": 0, "session": 0xDEADBEEF, "round": 0x01020304}
    assert first.fields == {**header, "length": 532, "sequence": 0, "chunk": golden.GRADIENT[:532]}
    assert last.fields == {**header, "length": 8, "sequence": 1, "chunk": golden.GRADIENT[532:]}
    assert last[Padding].load == bytes(524)
    assert [bytes(first), bytes(last)] == golden.FRAMES


@pytest.mark.parametrize("name", FIELDS)
def test_control_messages_decode_from_the_golden_bytes(name: str) -> None:
    layer, fields = FIELDS[name]
    [message] = control_messages(golden.CONTROL[name])
    assert message[layer].fields == fields
    assert bytes(Control(type=message.type) / layer(**fields)) == golden.CONTROL[name]


def test_the_handshake_decodes_from_the_golden_bytes() -> None:
    hello, welcome, bye = control_messages(b"".join(golden.CONTROL[name] for name in ("Hello", "Welcome", "Bye")))
    assert hello[Json].members()["tensors"] == [["fc.weight", [10, 100], "float32"]]
    assert welcome[Json].members()["session"] == 0xDEADBEEF
    assert bytes(bye) == golden.CONTROL["Bye"]


def test_layers_are_found_by_their_ports() -> None:
    bind_control(7000)
    frame = Ether(bytes(Ether() / IP() / UDP(dport=52224) / golden.FRAMES[1]))
    assert frame[DataFrame].sequence == 1
    assert Ether(bytes(Ether() / IP() / TCP(sport=7000) / golden.CONTROL["Stop"]))[Stop].stale == 5
    assert Raw in Ether(bytes(Ether() / IP() / UDP(sport=52224, dport=53000) / golden.FRAMES[1]))


@pytest.mark.parametrize("name", [*golden.CONTROL, "DataFrame"])
def test_every_cut_of_a_message_is_raw_or_shorter_never_an_error(name: str) -> None:
    whole = golden.FRAMES[1] if name == "DataFrame" else golden.CONTROL[name]
    for size in range(min(len(whole), 40)):
        (DataFrame if name == "DataFrame" else Control)(whole[:size]).show(dump=True)
        assert control_messages(whole[:size]) == [] or name == "DataFrame"


@given(st.binary(max_size=80), st.integers(0, 255))
def test_hostile_bytes_never_raise(data: bytes, kind: int) -> None:
    DataFrame(data).show(dump=True)
    Control(data).show(dump=True)
    for message in control_messages(len(data).to_bytes(4, "big") + bytes([kind]) + data):
        message.show(dump=True)
        if Json in message:
            message[Json].members()
