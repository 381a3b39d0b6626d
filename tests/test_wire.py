"""Bytes on the wire: literal golden vectors, and a decoder that survives whatever a stream may hold."""

from __future__ import annotations

import contextlib
from pathlib import Path

import golden
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import TransportConfig
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire import (
    CONTROL_CAP,
    Bitmap,
    Bye,
    Challenge,
    ControlDecoder,
    Error,
    FrameArray,
    Hello,
    Message,
    Probe,
    Progress,
    Round,
    Stop,
    Welcome,
    authenticate,
    encode,
    model_frames,
    next_round,
    pack_bits,
    unpack_bits,
)

HELLO = Hello(
    version=1, rank=2, name="w3", udp_port=52354, frame_bytes=1472, size_bytes=4000, chunks=3,
    tensors=[["fc.weight", [10, 100], "float32"]], nonce="00ff", mac="ab",
)
WELCOME = Welcome(
    version=1, session=0xDEADBEEF, udp_port=52226, workers=3, share=2.5e8, order="by_norm", error_feedback=True,
    mac="cd",
)

MESSAGES: list[Message] = [
    Challenge(1, bytes(range(16))), HELLO, WELCOME, Round(7, 0.5, True), Probe(0xFFFFFFFE, 3),
    Bitmap(7, 2, b"\xa0\x80"), Progress(7, 2, 1000, 1234), Stop(7, 5, 6, b"\xff\xc0"), Error("straße"), Bye(),
]
NAMES = [type(message).__name__ for message in MESSAGES]


def decode(data: bytes) -> list[Message]:
    decoder = ControlDecoder()
    decoder.feed(data)
    return list(decoder)


def test_data_frames_have_the_golden_bytes() -> None:
    config = TransportConfig(mtu=576)      # chunk of 532 bytes
    gradient = np.arange(135, dtype="<f4")      # 540 bytes: one whole chunk and one of two values
    frames = model_frames(gradient.nbytes, 0xDEADBEEF, config)
    frames.load(gradient)
    frames.words[:, 2] = 0x01020304
    assert [bytes(frame) for frame in frames.raw] == golden.FRAMES


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_control_messages_have_the_golden_bytes(message: Message) -> None:
    data = golden.CONTROL[type(message).__name__]
    assert encode(message) == data
    assert decode(data) == [message]


def test_the_documents_examples_are_the_golden_bytes() -> None:
    text = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
    block = text.split("Examples, whole messages in hex:")[1].split("```")[1]
    examples = [bytes.fromhex(line[38:]) for line in block.strip().splitlines()]
    assert examples == [golden.CONTROL[name] for name in ("Round", "Probe", "Bitmap", "Progress", "Stop", "Bye")]


@pytest.mark.parametrize(("mtu", "chunk"), [(576, 532), (1500, 1456), (1501, 1456), (1503, 1456), (1504, 1460)])
def test_a_frame_fills_the_mtu_with_whole_floats(mtu: int, chunk: int) -> None:
    config = TransportConfig(mtu=mtu)
    assert config.chunk_bytes == chunk
    assert mtu - 4 < config.frame_bytes + 28 <= mtu
    assert config.wire_bytes == config.frame_bytes + 42


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mtu": 575}, "mtu is 575 bytes"),
        ({"mtu": 65536}, "mtu is 65536 bytes"),
        ({"data_port_base": 65281}, "data_port_base is 65281; a block of 256 ports"),
        ({"data_port_base": -1}, "data_port_base is -1"),
        ({"pacing": "shared"}, "pacing is 'shared'; known are none, fixed, share"),
        ({"pacing": "fixed"}, "needs fixed_rate"),
        ({"broadcast": "lossless"}, "broadcast is 'lossless'; known are lossy, agreed, complete"),
        ({"repair": "never"}, "repair is 'never'; known are per_pass, none"),
        ({"repair": "none", "broadcast": "agreed"}, "broadcast is 'agreed', which no round without repair can keep"),
        ({"order": "norm"}, "order is 'norm'; known are sequential, rotating, by_norm"),
        ({"aggregate": "mean"}, "aggregate is 'mean'; known are zero_fill, contributors"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        TransportConfig(**changes)


@given(st.integers(1, 5000))
def test_model_frames_cover_any_size_once(size: int) -> None:
    config = TransportConfig(mtu=576)
    gradient = np.random.default_rng(size).standard_normal(size, np.float32)
    frames = model_frames(gradient.nbytes, 1, config)
    frames.load(gradient)
    lengths = frames.words[:, 0] & 0xFFFF
    assert lengths.sum() == gradient.nbytes
    assert (lengths[:-1] == config.chunk_bytes).all()
    payload = b"".join(bytes(chunk[:length]) for chunk, length in zip(frames.chunks, lengths, strict=True))
    assert payload == gradient.tobytes()


def test_loading_again_overwrites_the_whole_gradient() -> None:
    frames = model_frames(540, 1, TransportConfig(mtu=576))
    frames.load(np.ones(135, np.float32))
    frames.load(np.zeros(135, np.float32))
    assert not frames.chunks.any()


@pytest.mark.parametrize("size", [1, 132, 133, 134, 266, 300])
def test_a_gradient_is_added_to_what_the_frames_hold(size: int) -> None:
    frames = model_frames(4 * size, 1, TransportConfig(mtu=576))
    first, second = np.arange(size, dtype=np.float32), np.full(size, 0.5, np.float32)
    frames.load(first)
    frames.add(second)
    assert frames.chunks.reshape(-1).view(np.float32)[:size].tolist() == (first + second).tolist()
    assert not frames.chunks.reshape(-1)[4 * size :].any()


def test_frame_views_share_memory() -> None:
    frames = FrameArray(2, 20)
    frames.words[1, 3] = 0x0A0B0C0D
    frames.chunks[1] = 9
    assert bytes(frames.bytes[20:]) == bytes(12) + b"\x0a\x0b\x0c\x0d" + b"\x09" * 4


def test_rounds_wrap() -> None:
    assert next_round(5) == 6
    assert next_round(2**32 - 1) == 0
    assert next_round(2**32 - 2, 2) == 0


# --- bitmaps ---


def test_bit_0_is_the_most_significant_of_the_first_byte() -> None:
    delivered = np.zeros(10, bool)
    delivered[[0, 2, 8]] = True
    assert pack_bits(delivered) == b"\xa0\x80"


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_bitmaps_round_trip(bits: list[bool]) -> None:
    delivered = np.array(bits)
    back = unpack_bits(pack_bits(delivered), len(bits))
    assert back.dtype == bool
    assert back.tolist() == bits


@given(st.binary(max_size=8), st.integers(1, 40))
def test_a_bitmap_of_another_size_is_refused(bits: bytes, chunks: int) -> None:
    if len(bits) == -(-chunks // 8):
        assert len(unpack_bits(bits, chunks)) == chunks
    else:
        with pytest.raises(RemoteProtocolError, match=f"bitmap of {len(bits)} bytes for {chunks} chunks"):
            unpack_bits(bits, chunks)


# --- the decoder ---

u32 = st.integers(0, 2**32 - 1)
packed = st.one_of(
    st.builds(Round, u32, st.floats(0, 1, exclude_max=True), st.booleans()),
    st.builds(Probe, u32, u32),
    st.builds(Bitmap, u32, u32, st.binary(max_size=40)),
    st.builds(Progress, u32, u32, u32, u32),
    st.builds(Stop, u32, u32, u32, st.binary(max_size=40)),
    st.builds(Error, st.text(max_size=20)),
    st.just(Bye()),
    st.just(HELLO),
    st.just(WELCOME),
)


@given(st.lists(packed, max_size=8), st.lists(st.integers(1, 30), max_size=40))
def test_messages_survive_any_cut_of_the_stream(messages: list[Message], cuts: list[int]) -> None:
    stream, decoder, got = b"".join(map(encode, messages)), ControlDecoder(), []
    for cut in [*cuts, len(stream)]:
        piece, stream = stream[:cut], stream[cut:]
        decoder.feed(piece)
        got += decoder
    assert got == messages


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_garbage_never_escapes_as_anything_but_a_protocol_error(pieces: list[bytes]) -> None:
    decoder = ControlDecoder()
    with contextlib.suppress(RemoteProtocolError):
        for piece in pieces:
            decoder.feed(piece)
            list(decoder)


@given(st.integers(0, 12), st.binary(max_size=60))
def test_a_hostile_body_of_any_type_is_a_message_or_a_protocol_error(kind: int, body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode((1 + len(body)).to_bytes(4, "big") + bytes([kind]) + body)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\0\0\x05", "control message of 0 bytes"),
        ((CONTROL_CAP + 1).to_bytes(4, "big") + b"\x05", f"the cap is {CONTROL_CAP}"),
        (b"GET / HTTP/1.1\r\n\r\n", "control message of 1195725856 bytes"),
        (b"\0\0\0\x01\x63", "unknown control message type 99"),
        (b"\0\0\0\x02\x05\0", "PROBE of 1 bytes, expected 8"),
        (b"\0\0\0\x02\x0a\0", "BYE of 1 bytes, expected 0"),
        (b"\0\0\0\x05\x08\0\0\0\0", "STOP of 4 bytes, expected 12"),
        (b"\0\0\0\x12\x01\x02" + bytes(16), "server speaks protocol version 2, this worker 1; install the same"),
        (b"\0\0\0\x03\x01\x01\0", "CHALLENGE of 2 bytes instead of 17"),
        (b"\0\0\0\x0f\x02" + b'{"version": 2}', "peer speaks protocol version 2, this side 1; install the same"),
        (b"\0\0\0\x03\x02[]", "malformed HELLO"),
        (b"\0\0\0\x0b\x03" + b'{"port":1}', "malformed WELCOME"),
        (b"\0\0\x27\x11\x02" + b"[" * 10000, "malformed HELLO"),
        (encode(WELCOME).replace(b"52226", b'"526"'), "malformed WELCOME: udp_port is '526'"),
        (encode(Round(1, 0.5, False)).replace(b"\x3f\xe0", b"\x7f\xf8"), "ROUND with a tolerance of nan"),
        (encode(Round(1, 0.5, False)).replace(b"\x3f\xe0", b"\x3f\xf0"), "ROUND with a tolerance of 1.0"),
    ],
)
def test_malformed_control_messages_name_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode(data)


def test_the_mac_covers_role_nonces_and_every_field_but_itself() -> None:
    nonces = bytes(range(16)) + bytes.fromhex(HELLO.nonce)
    golden = "8bb2172b2e4e2e650f3ebfacf7f4a7f4b84b447d320e83a4612d79d035e8c0a9"
    assert authenticate(b"secret", "worker", nonces, HELLO) == golden
    mac = authenticate(b"secret", "worker", b"nonces", HELLO)
    changed = Hello(**{**HELLO.__dict__, "mac": ""})
    assert authenticate(b"secret", "worker", b"nonces", changed) == mac
    other = Hello(**{**HELLO.__dict__, "udp_port": 1})
    assert len({
        mac,
        authenticate(b"Secret", "worker", b"nonces", HELLO),
        authenticate(b"secret", "server", b"nonces", HELLO),
        authenticate(b"secret", "worker", b"noncez", HELLO),
        authenticate(b"secret", "worker", b"nonces", other),
    }) == 5
