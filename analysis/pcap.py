"""Captured packets, by numpy: pcap files to data frames and control messages of each worker's channel.

Follows docs/protocol.md and shares no code with `protocol/`, so that it can contradict it. `analysis.dissector` decodes
the same with scapy, packet by packet; the tests hold the two against each other.
"""

from __future__ import annotations

import heapq
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

IPPROTO_TCP, IPPROTO_UDP = 6, 17
HELLO, WELCOME, ROUND, PROBE, BITMAP, PROGRESS, STOP, ERROR, BYE = range(2, 11)
CONTROL_CAP = 16 << 20       # bytes of a message; docs/protocol.md, section 4
UDP_HEADER, FRAME_HEADER = 8, 16
_LAYOUTS = {ROUND: ">Id?", PROBE: ">II", BITMAP: ">II", PROGRESS: ">IIII", STOP: ">III"}


class CaptureError(ValueError):
    """A capture cannot be read as asked; the text names the file, the cause and the remedy."""


class Address(NamedTuple):
    """One end of a flow."""

    ip: int
    port: int


@dataclass(frozen=True)
class Packets:
    """The IPv4 packets of UDP and TCP in one file, in order of time.

    Attributes:
        buffer: the file's bytes, and some zeros, so that a header may be read beyond the end of a cut packet.
        time: (n,) int64, ns since 1970.
        protocol: (n,) 6 or 17.
        source, target: (n,) addresses, `ip << 16 | port`.
        payload: (n,) offset in `buffer` of what the TCP or UDP header is followed by.
        captured: (n,) bytes of that payload in the file.
        length: (n,) bytes of that payload on the wire.
        transport: (n,) offset of the TCP or UDP header.
    """

    path: Path
    buffer: np.ndarray
    time: np.ndarray
    protocol: np.ndarray
    source: np.ndarray
    target: np.ndarray
    payload: np.ndarray
    captured: np.ndarray
    length: np.ndarray
    transport: np.ndarray

    def flow(self, protocol: int, source: Address, target: Address) -> np.ndarray:
        """Indices of the packets from one address to the other."""
        return np.flatnonzero(
            (self.protocol == protocol)
            & (self.source == (source.ip << 16 | source.port))
            & (self.target == (target.ip << 16 | target.port))
        )


class Frames(NamedTuple):
    """Data frames of one direction of a channel at one capture point, in order of time; (n,) each."""

    time: np.ndarray         # ns
    round: np.ndarray
    sequence: np.ndarray
    length: np.ndarray       # bytes of the gradient


class Message(NamedTuple):
    """A control message; `fields` as docs/protocol.md lists them, JSON as one dict, text as one str."""

    time: int                # ns: when its last byte passed
    type: int
    fields: tuple
    bits: bytes = b""


@dataclass(frozen=True)
class Point:
    """What one file holds of one worker's channel.

    Attributes:
        upward, downward: control messages of the worker, of the server.
        reduce, broadcast: data frames of the worker, of the server.
        segments: TCP segments (worker to server, server to worker).
        whole: no gap in either control stream.
    """

    name: str
    upward: list[Message]
    downward: list[Message]
    reduce: Frames
    broadcast: Frames
    segments: tuple[int, int]
    whole: bool


@dataclass(frozen=True)
class Channel:
    """One worker's channel, as its handshake described it, and the files it was seen in."""

    worker: str
    chunks: int
    chunk_bytes: int
    points: list[Point]


def read(path: Path) -> Packets:
    """The packets of a pcap file: Ethernet, either byte order, micro- or nanoseconds. A cut last packet is left out.

    Raises:
        CaptureError: not such a file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from None
    for order in "<>":
        unit = {0xA1B23C4D: 1, 0xA1B2C3D4: 1000}.get(struct.unpack(f"{order}I", raw[:4].ljust(4, b"\0"))[0])
        if unit:
            break
    else:
        hint = "; convert it with `tshark -F pcap -r IN -w OUT`" if raw[:4] == b"\n\r\r\n" else ""
        raise CaptureError(f"{path}: not a pcap file{hint}")
    if len(raw) < 24 or (link := struct.unpack_from(f"{order}I", raw, 20)[0]) != 1:
        raise CaptureError(f"{path}: link type {link if len(raw) >= 24 else 'missing'}; only Ethernet (1) is read")
    starts = []
    at, captured_at = 24, struct.Struct(f"{order}8xI")
    while at + 16 <= len(raw):
        size = captured_at.unpack_from(raw, at)[0]
        if at + 16 + size > len(raw):
            break
        starts.append(at)
        at += 16 + size
    buffer = np.frombuffer(raw + bytes(256), np.uint8)
    return _packets(path, buffer, np.array(starts, np.int64), order, unit)


def _packets(path: Path, buffer: np.ndarray, record: np.ndarray, order: str, unit: int) -> Packets:
    header = buffer[record[:, None] + np.arange(16)].view(f"{order}u4").astype(np.int64).reshape(-1, 4)
    time, captured = header[:, 0] * 1_000_000_000 + header[:, 1] * unit, header[:, 2]
    ip = record + 16 + 14
    protocol = buffer[ip + 9]
    wanted = (
        (captured >= 14 + 20)
        & (_number(buffer, ip - 2, 2) == 0x0800)
        & (buffer[ip] >> 4 == 4)
        & ((protocol == IPPROTO_TCP) | (protocol == IPPROTO_UDP))
        & (_number(buffer, ip + 6, 2) & 0x1FFF == 0)
    )
    ip, protocol, time, end = (column[wanted] for column in (ip, protocol, time, record + 16 + captured))
    transport = ip + (buffer[ip] & 15).astype(np.int64) * 4
    tcp = protocol == IPPROTO_TCP
    inside = np.minimum(transport + 12, len(buffer) - 1)
    payload = transport + np.where(tcp, (buffer[inside] >> 4).astype(np.int64) * 4, UDP_HEADER)
    kept = payload <= end
    order_ = np.argsort(time[kept], kind="stable")
    ip, protocol, time, end, transport, payload = (
        column[kept][order_] for column in (ip, protocol, time, end, transport, payload)
    )
    source = _number(buffer, ip + 12, 4) << 16 | _number(buffer, transport, 2)
    target = _number(buffer, ip + 16, 4) << 16 | _number(buffer, transport + 2, 2)
    packet_end = ip + _number(buffer, ip + 2, 2)      # by IP's own length: short frames are padded
    return Packets(
        path, buffer, time, protocol, source, target, payload,
        np.maximum(np.minimum(end, packet_end) - payload, 0), np.maximum(packet_end - payload, 0), transport,
    )


def _number(buffer: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """(n,) int64: big-endian numbers of `size` bytes at these offsets."""
    result = np.zeros(len(at), np.int64)
    for shift in range(size):
        result = result << 8 | buffer[at + shift]
    return result


def frames(packets: Packets, source: Address, target: Address, session: int, frame_bytes: int) -> Frames:
    """The data frames of a session from one address to another.

    Raises:
        CaptureError: packets hold several frames, as they do where segmentation or receive offload is on.
    """
    chosen = packets.flow(IPPROTO_UDP, source, target)
    chosen = chosen[packets.captured[chosen] >= FRAME_HEADER]
    if (packets.length[chosen] > frame_bytes).any():
        raise CaptureError(
            f"{packets.path}: packets longer than a frame of {frame_bytes} bytes: the kernel had joined them; capture "
            "where they are single, or turn GSO and GRO off (ethtool -K)"
        )
    at = packets.payload[chosen]
    ours = (packets.buffer[at] == 1) & (_number(packets.buffer, at + 4, 4) == session)
    at = at[ours]
    return Frames(
        packets.time[chosen][ours], _number(packets.buffer, at + 8, 4), _number(packets.buffer, at + 12, 4),
        _number(packets.buffer, at + 2, 2),
    )


def messages(data: bytes) -> list[tuple[int, int, tuple, bytes]]:
    """Control messages at the beginning of a byte stream: (offset of its end, type, fields, bits) of each.

    Ends before the first that is cut or malformed; never raises.
    """
    found, at = [], 0
    while at + 5 <= len(data):
        length, kind = struct.unpack_from(">IB", data, at)
        end = at + 4 + length
        if not 1 <= length <= CONTROL_CAP or end > len(data):
            break
        body = data[at + 5 : end]
        fields, bits = (), b""
        if kind in _LAYOUTS:
            size = struct.calcsize(_LAYOUTS[kind])
            if len(body) < size or (len(body) > size and kind not in (BITMAP, STOP)):
                break
            fields, bits = struct.unpack_from(_LAYOUTS[kind], body), body[size:]
        elif kind in (HELLO, WELCOME):
            try:
                fields = (json.loads(body),)
            except (ValueError, RecursionError):
                break
        elif kind == ERROR:
            fields = (body.decode(errors="replace"),)
        found.append((end, kind, fields, bits))
        at = end
    return found


def _stream(packets: Packets, chosen: np.ndarray) -> tuple[bytes, list[int], list[int], bool]:
    """One direction of a TCP connection (RFC 9293): its bytes, from SYN to the first gap.

    Returns:
        (data, ends, times, whole): data[: ends[i]] was complete at times[i]; whole says that there was no gap.
    """
    data, ends, times = bytearray(), [], []
    waiting: list[tuple[int, int]] = []      # (offset, index) of segments, the next one first
    base = None
    raw = packets.buffer
    for i in chosen:
        header = packets.transport[i]
        sequence = int.from_bytes(raw[header + 4 : header + 8].tobytes(), "big")
        if raw[header + 13] & 0x02:
            base = sequence + 1
            continue
        if base is None or not packets.captured[i]:
            continue
        # Sequence numbers wrap; a distance beyond 2^31 is one backwards.
        offset = (sequence - base - len(data) + (1 << 31)) % (1 << 32) - (1 << 31) + len(data)
        heapq.heappush(waiting, (offset, int(i)))
        while waiting and waiting[0][0] <= len(data):
            start, which = heapq.heappop(waiting)
            at = int(packets.payload[which])
            fresh = raw[at : at + int(packets.captured[which])].tobytes()[len(data) - start :]
            if fresh:
                data += fresh
                ends.append(len(data))
                times.append(int(packets.time[i]))
    return bytes(data), ends, times, base is not None and not waiting


def _messages(packets: Packets, chosen: np.ndarray) -> tuple[list[Message], bool]:
    data, ends, times, whole = _stream(packets, chosen)
    found = messages(data)
    stamps = np.searchsorted(ends, [end for end, *_ in found])
    decoded = [Message(times[at], *rest) for at, (_, *rest) in zip(stamps, found, strict=True)]
    return decoded, whole and (not found or found[-1][0] == len(data))


def channels(paths: Sequence[Path]) -> list[Channel]:
    """The channels of all workers whose handshake is in these files, in order of their names.

    Raises:
        CaptureError: a file cannot be read, or none holds a handshake.
    """
    points: dict[tuple[Address, Address, int], tuple[dict, dict, list[Point]]] = {}
    for path in paths:
        packets = read(path)
        syn = (packets.protocol == IPPROTO_TCP) & (packets.buffer[packets.transport + 13] & 0x12 == 0x02)
        pairs = sorted({*zip(packets.source[syn].tolist(), packets.target[syn].tolist(), strict=True)})
        for worker, server in ((_address(a), _address(b)) for a, b in pairs):
            up = packets.flow(IPPROTO_TCP, worker, server)
            down = packets.flow(IPPROTO_TCP, server, worker)
            upward, up_whole = _messages(packets, up)
            downward, down_whole = _messages(packets, down)
            hello = next((m.fields[0] for m in upward if m.type == HELLO), None)
            welcome = next((m.fields[0] for m in downward if m.type == WELCOME), None)
            if not _is_handshake(hello, welcome):
                continue
            ends = Address(worker.ip, hello["udp_port"]), Address(server.ip, welcome["udp_port"])
            data = [
                frames(packets, source, target, welcome["session"], hello["frame_bytes"])
                for source, target in (ends, ends[::-1])
            ]
            _, _, seen = points.setdefault((worker, server, welcome["session"]), (hello, welcome, []))
            seen.append(Point(path.stem, upward, downward, *data, (len(up), len(down)), up_whole and down_whole))
    if not points:
        raise CaptureError(
            f"{', '.join(map(str, paths))}: no handshake of a worker and its server; a capture must begin before them"
        )
    found = [
        Channel(hello["name"], hello["chunks"], hello["frame_bytes"] - FRAME_HEADER, seen)
        for hello, _, seen in points.values()
    ]
    return sorted(found, key=lambda channel: (len(channel.worker), channel.worker))


def _address(number: int) -> Address:
    return Address(number >> 16, number & 0xFFFF)


def _is_handshake(hello: object, welcome: object) -> bool:
    """Both are there, with what this module uses of them."""
    numbers = ((hello, ("udp_port", "frame_bytes", "chunks")), (welcome, ("udp_port", "session")))
    return all(
        isinstance(message, dict) and all(isinstance(message.get(name), int) for name in names)
        for message, names in numbers
    ) and isinstance(hello.get("name"), str) and hello["frame_bytes"] > FRAME_HEADER and (
        0 < hello["chunks"] <= 8 * CONTROL_CAP      # more do not fit into a BITMAP
    )
