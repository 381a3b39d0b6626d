"""Bytes on the wire: data frames over UDP, control messages over TCP. Nothing else in the project knows them.

Data frame, network byte order (the paper's three fields are sequence, round and length; section IV-A):

    version u8 | flags u8 | length u16 | session u32 | round u32 | sequence u32 | chunk

Control message: length u32 (of what follows) | type u8 | body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar, get_origin, get_type_hints

import numpy as np

from protocol.config import FRAME_HEADER, TransportConfig
from protocol.errors import RemoteProtocolError

VERSION = 1
CONTROL_CAP = 16 << 20      # bytes; a larger control message is an attack or a bug, never a model
NONCE_BYTES = 16
ROUND_MODULUS = 1 << 32


def next_round(round_: int, by: int = 1) -> int:
    """The round `by` communications later; rounds wrap at 2**32."""
    return (round_ + by) % ROUND_MODULUS


class FrameArray:
    """Frames in one preallocated array, seen as whole frames, header words and chunks without a copy.

    Attributes:
        raw: (count, frame_bytes) uint8, ready for the socket.
        words: (count, 4) big-endian uint32: version/flags/length, session, round, sequence.
        chunks: (count, chunk_bytes) uint8.
        values: (count, chunk_bytes / 4) float32, the same.
    """

    def __init__(self, count: int, frame_bytes: int) -> None:
        self.raw = np.zeros((count, frame_bytes), np.uint8)
        self.words = self.raw.view(">u4")[:, : FRAME_HEADER // 4]
        self.chunks = self.raw[:, FRAME_HEADER:]
        self.values = self.chunks.view(np.float32)
        self.bytes = memoryview(self.raw).cast("B")

    def __len__(self) -> int:
        return len(self.raw)

    def load(self, gradient: np.ndarray) -> None:
        """Copy a flat gradient, (size,) float32, into the chunks."""
        flat, chunk = gradient.view(np.uint8), self.chunks.shape[1]
        whole = flat.size // chunk
        self.chunks[:whole] = flat[: whole * chunk].reshape(whole, chunk)
        if whole < len(self):
            self.chunks[whole, : flat.size - whole * chunk] = flat[whole * chunk :]


    def add(self, gradient: np.ndarray) -> None:
        """Add a flat gradient, (size,) float32, to the chunks."""
        values = self.values.shape[1]
        whole = gradient.size // values
        self.values[:whole] += gradient[: whole * values].reshape(whole, values)
        if whole < len(self):
            self.values[whole, : gradient.size - whole * values] += gradient[whole * values :]


def first_word(length: int) -> int:
    """The first header word (version, flags 0, length) as an integer."""
    return VERSION << 24 | length


def model_frames(size_bytes: int, session: int, config: TransportConfig) -> FrameArray:
    """Frames for a flat gradient of `size_bytes` bytes, headers filled in but for the round.

    The last chunk may be shorter: its length field says so, and its frame is padded with zeros, since
    UDP_SEGMENT wants equal sizes.
    """
    count = -(-size_bytes // config.chunk_bytes)
    frames = FrameArray(count, config.frame_bytes)
    frames.words[:, 0] = first_word(config.chunk_bytes)
    frames.words[-1, 0] = first_word(size_bytes - (count - 1) * config.chunk_bytes)
    frames.words[:, 1] = session
    frames.words[:, 3] = np.arange(count)
    return frames


@dataclass(frozen=True)
class Tensor:
    """Name, shape and dtype of one tensor of the flat gradient, in flat order."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Challenge:
    """Server to worker, on connecting: the nonce that the worker must answer with the secret."""

    TYPE: ClassVar[int] = 1
    version: int
    nonce: bytes

    def body(self) -> bytes:
        return struct.pack("!B", self.version) + self.nonce

    @classmethod
    def parse(cls, body: bytes) -> Challenge:
        # The version comes first and alone, so that a peer of any version can name the difference.
        if body and body[0] != VERSION:
            raise RemoteProtocolError(
                f"the server speaks protocol version {body[0]}, this worker {VERSION}; install the same release on both"
            )
        if len(body) != 1 + NONCE_BYTES:
            raise RemoteProtocolError(f"CHALLENGE of {len(body)} bytes instead of {1 + NONCE_BYTES}")
        return cls(body[0], body[1:])


class _Json:
    """Body as JSON in UTF-8: for the handshake, which is sent once and carries names."""

    def body(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload]

    @classmethod
    def parse(cls, body: bytes):
        try:
            fields = json.loads(body)
            version = fields.get("version", VERSION)
            if version != VERSION:
                raise RemoteProtocolError(
                    f"the peer speaks protocol version {version}, this side {VERSION}; install the same release on both"
                )
            hints = get_type_hints(cls)
            for name, value in fields.items():
                if not isinstance(value, list if get_origin(hints[name]) is list else hints[name]):
                    raise TypeError(f"{name} is {value!r}")
            return cls(**fields)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise RemoteProtocolError(f"malformed {cls.__name__.upper()}: {error}") from None


@dataclass(frozen=True)
class Hello(_Json):
    """Worker to server: who it is, and the shape of what it will send (paper, section IV-A)."""

    TYPE: ClassVar[int] = 2
    version: int
    rank: int
    name: str
    udp_port: int
    frame_bytes: int
    size_bytes: int
    chunks: int
    tensors: list[tuple[str, list[int], str]]
    nonce: str
    mac: str = ""


@dataclass(frozen=True)
class Welcome(_Json):
    """Server to worker: the session, where to send, the rate granted to the sender (bit/s) or null, and how to send."""

    TYPE: ClassVar[int] = 3
    version: int
    session: int
    udp_port: int
    workers: int
    share: float | None
    order: str
    error_feedback: bool
    mac: str = ""


class _Packed:
    """Body as fixed fields, then optionally a bitmap that fills the rest."""

    LAYOUT: ClassVar[struct.Struct]
    BITMAP: ClassVar[bool] = False

    def body(self) -> bytes:
        fields = list(self.__dict__.values())
        if self.BITMAP:
            return self.LAYOUT.pack(*fields[:-1]) + fields[-1]
        return self.LAYOUT.pack(*fields)

    @classmethod
    def parse(cls, body: bytes):
        size = cls.LAYOUT.size
        if len(body) < size or (len(body) > size and not cls.BITMAP):
            raise RemoteProtocolError(f"{cls.__name__.upper()} of {len(body)} bytes, expected {size}")
        fields = cls.LAYOUT.unpack_from(body)
        return cls(*fields, body[size:]) if cls.BITMAP else cls(*fields)


@dataclass(frozen=True)
class Round(_Packed):
    """Server to worker: the tolerance in force for a round, and whether it lies in the CLR."""

    TYPE: ClassVar[int] = 4
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!Id?")
    round: int
    tolerance: float
    in_clr: bool

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise RemoteProtocolError(f"ROUND with a tolerance of {self.tolerance}; it lies in [0, 1)")


@dataclass(frozen=True)
class Probe(_Packed):
    """Sender to receiver: pass `pass_` (from 1) over the chunks is sent."""

    TYPE: ClassVar[int] = 5
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!II")
    round: int
    pass_: int


@dataclass(frozen=True)
class Bitmap(_Packed):
    """Receiver to sender: the answer to a PROBE; bit i of `bits` (most significant first) is chunk i."""

    TYPE: ClassVar[int] = 6
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!II")
    BITMAP: ClassVar[bool] = True
    round: int
    pass_: int
    bits: bytes


@dataclass(frozen=True)
class Progress(_Packed):
    """Receiver to sender, now and then within a pass: chunks delivered, and the last chunk that arrived.

    Not a signal of the paper: it lets the sender see a burst within milliseconds instead of at the end of the pass.
    """

    TYPE: ClassVar[int] = 7
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!IIII")
    round: int
    pass_: int
    delivered: int
    sequence: int


@dataclass(frozen=True)
class Stop(_Packed):
    """Receiver to sender: enough has arrived. Carries what did, so the sender knows what was lost."""

    TYPE: ClassVar[int] = 8
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!III")
    BITMAP: ClassVar[bool] = True
    round: int
    stale: int
    duplicate: int
    bits: bytes


@dataclass(frozen=True)
class Error:
    """Either way: the sender of this gives up; `text` names the cause for a person."""

    TYPE: ClassVar[int] = 9
    text: str

    def body(self) -> bytes:
        return self.text.encode()

    @classmethod
    def parse(cls, body: bytes) -> Error:
        return cls(body.decode(errors="replace"))


@dataclass(frozen=True)
class Bye(_Packed):
    """Worker to server: training is over; closing the connection now is not a loss."""

    TYPE: ClassVar[int] = 10
    LAYOUT: ClassVar[struct.Struct] = struct.Struct("!")


Message = Challenge | Hello | Welcome | Round | Probe | Bitmap | Progress | Stop | Error | Bye
_TYPES: dict[int, type[Message]] = {
    kind.TYPE: kind for kind in (Challenge, Hello, Welcome, Round, Probe, Bitmap, Progress, Stop, Error, Bye)
}
_PREFIX = struct.Struct("!IB")
_LENGTH_BYTES = 4


def encode(message: Message) -> bytes:
    """A control message as bytes for the TCP stream."""
    body = message.body()
    return _PREFIX.pack(1 + len(body), message.TYPE) + body


class ControlDecoder:
    """Cuts a TCP byte stream into control messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what the connection gave."""
        self._buffer += data

    def __iter__(self) -> Iterator[Message]:
        """The messages that are complete, in order, each once.

        Raises:
            RemoteProtocolError: unknown type, malformed body, or a length beyond `CONTROL_CAP`.
        """
        while len(self._buffer) >= _PREFIX.size:
            length, kind = _PREFIX.unpack_from(self._buffer)
            if not 1 <= length <= CONTROL_CAP:
                raise RemoteProtocolError(f"control message of {length} bytes; the cap is {CONTROL_CAP}")
            if kind not in _TYPES:
                raise RemoteProtocolError(f"unknown control message type {kind}")
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_PREFIX.size : end])
            del self._buffer[:end]
            yield _TYPES[kind].parse(body)


def pack_bits(delivered: np.ndarray) -> bytes:
    """(chunks,) bool to the bytes of a BITMAP or STOP."""
    return np.packbits(delivered).tobytes()


def unpack_bits(bits: bytes, chunks: int) -> np.ndarray:
    """The bytes of a BITMAP or STOP to (chunks,) bool.

    Raises:
        RemoteProtocolError: the bitmap is not of this many chunks.
    """
    if len(bits) != -(-chunks // 8):
        raise RemoteProtocolError(f"bitmap of {len(bits)} bytes for {chunks} chunks")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=chunks).view(bool)


def authenticate(secret: bytes, role: str, nonces: bytes, message: Hello | Welcome) -> str:
    """HMAC-SHA256 (RFC 2104) of a handshake message under the shared secret and both sides' nonces, in hex."""
    fields = {**asdict(message), "mac": ""}
    text = json.dumps(fields, sort_keys=True).encode()
    return hmac.new(secret, role.encode() + nonces + text, hashlib.sha256).hexdigest()
