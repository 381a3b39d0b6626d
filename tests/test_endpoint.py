"""One channel alone, its peer played by hand: what the kernel and the peer may do to it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from loopback import CONFIG

from protocol import LocalProtocolError, PeerLostError, RemoteProtocolError
from protocol.endpoint import Channel
from protocol.receiver import Receiver
from protocol.wire import (
    Bitmap,
    Bye,
    ControlDecoder,
    Error,
    Message,
    Probe,
    Round,
    encode,
    model_frames,
    unpack_bits,
)

CHUNKS = 60      # more than a batch, less than a default socket buffer holds
SESSION = 77


class Peer:
    """The other ends of a channel's sockets, and the channel."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.tcp = socket.create_connection(listener.getsockname(), timeout=10)
            accepted, _ = listener.accept()
        self.udp, udp = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for sock in (self.udp, udp):
            sock.bind(("127.0.0.1", 0))
        self.udp.connect(udp.getsockname())
        udp.connect(self.udp.getsockname())
        self.udp.settimeout(10)
        udp.setblocking(False)
        size = CHUNKS * CONFIG.chunk_bytes
        self.frames = model_frames(size, SESSION, CONFIG)
        self.channel = Channel(
            "w1", accepted, udp, CONFIG, model_frames(size, SESSION, CONFIG),
            Receiver(size, CONFIG.chunk_bytes, SESSION), None, ControlDecoder(),
        )

    def send_frames(self, count: int, round_: int = 0) -> None:
        self.frames.words[:, 2] = round_
        for row in range(count):
            self.udp.send(self.frames.raw[row])

    def hear(self) -> Message:
        """The next control message of the channel."""
        decoder = ControlDecoder()
        while (message := next(iter(decoder), None)) is None:
            decoder.feed(self.tcp.recv(1 << 16))
        return message

    def received(self) -> list[int]:
        """Sequence numbers of the frames that lie at the peer's socket."""
        self.udp.setblocking(False)
        got = []
        while True:
            try:
                frame = self.udp.recv(1 << 16)
            except BlockingIOError:
                return got
            assert len(frame) == CONFIG.frame_bytes
            got.append(int.from_bytes(frame[12:16], "big"))


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.channel.close()
    made.tcp.close()
    made.udp.close()


class Socket:
    """A UDP socket whose device answers `send` as `answer` says, before the real one may."""

    def __init__(self, real: socket.socket, answer: Callable[[memoryview], None]) -> None:
        self._real, self._answer = real, answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def send(self, data: memoryview) -> int:
        self._answer(data)
        return self._real.send(data)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def for_ever(action: Callable[[], None]) -> None:
    while True:
        action()


def wait_for_control(channel: Channel) -> None:
    """Let what the peer has said arrive, without reading it."""
    channel.tcp.settimeout(10)
    channel.tcp.recv(1, socket.MSG_PEEK)
    channel.tcp.setblocking(False)


def test_the_socket_is_drained_before_a_probe_is_answered(peer: Peer) -> None:
    peer.channel.receiver.arm(0, 0.0)
    peer.send_frames(CHUNKS - 1)
    peer.tcp.sendall(encode(Probe(0, 1)))
    wait_for_control(peer.channel)
    peer.channel.read_control()      # before any look at the UDP socket
    peer.channel.flush()
    answer = peer.hear()
    assert isinstance(answer, Bitmap)
    assert unpack_bits(answer.bits, CHUNKS).tolist() == [True] * (CHUNKS - 1) + [False]


def test_frames_before_their_tolerance_end_the_round_once_it_comes(peer: Peer) -> None:
    peer.channel.receiver.arm(0)
    peer.send_frames(CHUNKS - 1)
    peer.channel.read_frames()
    peer.tcp.sendall(encode(Round(0, 0.02, False)))
    wait_for_control(peer.channel)
    assert not peer.channel.receiver.done
    peer.channel.read_control()
    assert peer.channel.receiver.done


def test_a_device_that_refuses_segmentation_gets_frames_one_by_one(peer: Peer) -> None:
    def no_offload(data: memoryview) -> None:
        if len(data) > CONFIG.frame_bytes:
            fail(errno.EIO)

    peer.channel.udp = Socket(peer.channel.udp, no_offload)
    peer.channel.start(0)
    peer.channel.pump()
    assert peer.received() == list(range(CHUNKS))
    assert peer.channel.sender.frames_sent == CHUNKS
    assert peer.hear() == Probe(0, 1)


def test_a_full_device_queue_loses_frames_as_any_queue(peer: Peer) -> None:
    peer.channel.udp = Socket(peer.channel.udp, lambda data: fail(errno.ENOBUFS))
    peer.channel.start(0)
    peer.channel.pump()
    assert peer.channel.sender.frames_sent == CHUNKS
    assert peer.hear() == Probe(0, 1)


def test_a_full_socket_waits_and_repeats_nothing(peer: Peer) -> None:
    room = [1]

    def little_room(data: memoryview) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise BlockingIOError

    peer.channel.udp = Socket(peer.channel.udp, little_room)
    peer.channel.start(0)
    peer.channel.pump()
    assert peer.channel.blocked
    assert peer.channel.sender.sending
    room[0], peer.channel.blocked = 10**6, False      # as the event loop does once the socket is writable
    peer.channel.pump()
    assert peer.received() == list(range(CHUNKS))


def test_a_frame_that_exceeds_the_path_names_the_remedy(peer: Peer) -> None:
    peer.channel.udp = Socket(peer.channel.udp, lambda data: fail(errno.EMSGSIZE))
    peer.channel.start(0)
    with pytest.raises(LocalProtocolError, match="a frame of 1500 bytes does not fit the path to w1; lower mtu"):
        peer.channel.pump()


def test_retransmission_sends_the_missing_chunks_and_no_others(peer: Peer) -> None:
    peer.channel.start(0)
    peer.channel.pump()
    peer.received()
    missing = [3, 4, 50, 59]
    delivered = np.ones(CHUNKS, bool)
    delivered[missing] = False
    peer.tcp.sendall(encode(Bitmap(0, 1, np.packbits(delivered).tobytes())))
    wait_for_control(peer.channel)
    peer.channel.read_control()
    peer.channel.pump()
    assert peer.received() == missing


def test_the_last_words_of_a_peer_come_before_a_broken_pipe(peer: Peer) -> None:
    peer.channel.say(Bye())      # never read, so that the peer's close is an RST
    peer.tcp.recv(1, socket.MSG_PEEK)
    peer.tcp.sendall(encode(Error("out of memory")))
    peer.tcp.close()
    with pytest.raises(RemoteProtocolError, match="w1 gave up: out of memory"):
        for_ever(lambda: peer.channel.say(Bye()))      # until the RST is here


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_peer_without_last_words_is_lost_with_the_round(peer: Peer, way: str) -> None:
    peer.channel.receiver.arm(41, 0.0)
    peer.tcp.close()
    with pytest.raises(PeerLostError, match="lost w1 in round 41: "):
        for_ever(peer.channel.read_control if way == "read" else lambda: peer.channel.say(Bye()))


def test_patience_ends_in_the_round_that_stalls(peer: Peer) -> None:
    peer.channel.start(7)
    begun = peer.channel.sender.started
    peer.channel.tick(begun + CONFIG.timeouts.stall)
    with pytest.raises(PeerLostError, match="lost w1 in round 7: no chunk was delivered for 30 s"):
        peer.channel.tick(begun + CONFIG.timeouts.stall + 1)
