"""A scapy layer for the protocol: data frames over UDP, control messages over TCP, as docs/protocol.md has them.

Written from that document and sharing no code with `protocol/`, so that one can contradict the other. Bytes that are
cut or hostile give `Raw`, never an exception. In a scapy shell::

    from analysis.dissector import *
    packets = rdpcap("captures/s1-w1.pcap")
    packets.filter(lambda packet: DataFrame in packet and packet[DataFrame].round == 6)
    control_messages(stream)      # of one side of a TCP connection

Data frames are known by the data block of ports; control messages by the port that the server listens on, which is told
by `bind_control(port)`.
"""

from __future__ import annotations

import json

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldLenField,
    IEEEDoubleField,
    IntField,
    StrField,
    StrLenField,
    XIntField,
    XStrField,
    XStrFixedLenField,
)
from scapy.layers.inet import TCP, UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_layers

DATA_PORTS = range(52224, 52480)        # docs/protocol.md, section 2
CONTROL_CAP = 16 << 20                  # section 4


class _Whole(Packet):
    """Decoded only if all fields are there; a shorter one is Raw. What follows a packet is padding."""

    MINIMUM = 0

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


def _whole(layer: type[_Whole]) -> type[_Whole]:
    def dispatch_hook(cls, _pkt: bytes | None = None, *_args, **_kwargs):
        return cls if _pkt is None or len(_pkt) >= cls.MINIMUM else Raw

    layer.dispatch_hook = classmethod(dispatch_hook)
    layer.MINIMUM = len(bytes(layer()))
    return layer


@_whole
class DataFrame(_Whole):
    """Section 3. The zeros that fill the last frame are padding."""

    name = "DBLP data"
    fields_desc = [
        ByteField("version", 1), ByteField("flags", 0), FieldLenField("length", None, length_of="chunk", fmt="!H"),
        XIntField("session", 0), IntField("round", 0), IntField("sequence", 0),
        StrLenField("chunk", b"", length_from=lambda packet: packet.length),
    ]


TYPES = {
    1: "CHALLENGE", 2: "HELLO", 3: "WELCOME", 4: "ROUND", 5: "PROBE", 6: "BITMAP", 7: "PROGRESS", 8: "STOP", 9: "ERROR",
    10: "BYE",
}


@_whole
class Control(Packet):
    """The prefix of a control message (section 4); its body is the payload, the next message the padding."""

    name = "DBLP control"
    fields_desc = [IntField("length", None), ByteEnumField("type", 10, TYPES)]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            pkt = (1 + len(pay)).to_bytes(4, "big") + pkt[4:]
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        body = max(self.length - 1, 0)
        return s[:body], s[body:]


class Json(Packet):
    """The body of HELLO and WELCOME (section 5)."""

    name = "DBLP handshake"
    fields_desc = [StrField("text", b"{}")]

    def members(self) -> dict:
        """The JSON object; empty if it is none."""
        try:
            members = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return members if isinstance(members, dict) else {}


class Text(Packet):
    """The body of ERROR."""

    name = "DBLP error"
    fields_desc = [StrField("text", b"")]


def _body(name: str, *fields: object) -> type[Packet]:
    return _whole(type(name, (_Whole,), {"name": f"DBLP {name.upper()}", "fields_desc": list(fields)}))


_ROUND, _PASS = IntField("round", 0), IntField("pass_", 1)
Challenge = _body("Challenge", ByteField("version", 1), XStrFixedLenField("nonce", bytes(16), 16))
Round = _body("Round", _ROUND, IEEEDoubleField("tolerance", 0), ByteField("in_clr", 0))
Probe = _body("Probe", _ROUND, _PASS)
Bitmap = _body("Bitmap", _ROUND, _PASS, XStrField("bits", b""))
Progress = _body("Progress", _ROUND, _PASS, IntField("delivered", 0), IntField("sequence", 0))
Stop = _body("Stop", _ROUND, IntField("stale", 0), IntField("duplicate", 0), XStrField("bits", b""))

for _type, _layer in enumerate((Challenge, Json, Json, Round, Probe, Bitmap, Progress, Stop, Text), 1):
    bind_layers(Control, _layer, type=_type)
for _port in DATA_PORTS:
    bind_bottom_up(UDP, DataFrame, dport=_port)


def bind_control(port: int) -> None:
    """Take what goes to and from this TCP port for control messages."""
    bind_bottom_up(TCP, Control, dport=port)
    bind_bottom_up(TCP, Control, sport=port)


def control_messages(stream: bytes) -> list[Packet]:
    """The control messages at the beginning of a stream, up to the first that is cut or breaks section 4."""
    messages = []
    while len(stream) >= 5:
        length = int.from_bytes(stream[:4], "big")
        if not 1 <= length <= CONTROL_CAP or len(stream) < 4 + length:
            break
        messages.append(Control(stream[: 4 + length]))
        stream = stream[4 + length :]
    return messages
