"""Frames off a real socket: grouped by the kernel or not, many messages a call or one, in order, junk left out."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from protocol.inbox import MESSAGES, UDP_GRO, Inbox
from protocol.wire import FrameArray

SIZE = 116      # bytes of a frame: 16 of header, 100 of chunk
UDP_SEGMENT = 103      # linux/udp.h


@pytest.fixture(params=[True, False], ids=["recvmmsg", "recvmsg"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, Inbox]]:
    """A connected sender and the inbox at the other end."""
    if not request.param:
        monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())      # a C library without it
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        for sock in (sender, receiver):
            sock.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        receiver.connect(sender.getsockname())
        receiver.setblocking(False)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        yield sender, Inbox(receiver, SIZE)


def made(count: int) -> FrameArray:
    frames = FrameArray(count, SIZE)
    frames.words[:, 3] = np.arange(count)
    frames.chunks[:] = np.arange(count)[:, None] % 251
    return frames


def drain(inbox: Inbox) -> list[int]:
    """Sequence numbers of all that waits, each checked against its chunk."""
    got: list[int] = []
    while (batch := inbox.read()) is not None:
        words, chunks = batch
        assert len(words) == len(chunks)
        assert (chunks == words[:, 3:] % 251).all()
        got += words[:, 3].tolist()
    return got


def test_nothing_waits(pair: tuple[socket.socket, Inbox]) -> None:
    assert pair[1].read() is None


def test_single_frames_beyond_one_call(pair: tuple[socket.socket, Inbox]) -> None:
    sender, inbox = pair
    frames = made(2 * MESSAGES + 5)
    for row in range(len(frames)):
        sender.send(frames.raw[row])
    assert drain(inbox) == list(range(len(frames)))
    assert inbox.malformed == 0


def test_groups_and_single_frames_keep_their_order(pair: tuple[socket.socket, Inbox]) -> None:
    sender, inbox = pair
    frames = made(300)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    edges = [0, 1, 2, 42, 43, 83, 123, 124, 125, 126, 190, 200, 263, 300]
    for begin, end in itertools.pairwise(edges):
        sender.send(frames.bytes[begin * SIZE : end * SIZE])
    assert drain(inbox) == list(range(300))


def test_datagrams_of_another_size_are_counted_one_by_one(pair: tuple[socket.socket, Inbox]) -> None:
    sender, inbox = pair
    frames = made(3)
    for data in (frames.raw[0], b"", b"x", frames.raw[1], bytes(SIZE + 1), bytes(3 * SIZE), frames.raw[2]):
        sender.send(data)
    assert drain(inbox) == [0, 1, 2]
    assert inbox.malformed == 3      # an empty datagram is nothing at all


def test_a_group_with_a_shorter_end_and_a_group_of_another_size(pair: tuple[socket.socket, Inbox]) -> None:
    sender, inbox = pair
    frames = made(5)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    sender.send(bytes(frames.bytes[: 4 * SIZE]) + b"short")
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE - 4)
    sender.send(bytes(4 * (SIZE - 4)))
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    sender.send(frames.raw[4])
    assert drain(inbox) == [0, 1, 2, 3, 4]
    assert inbox.malformed == 1 + 4


def test_a_peer_whose_socket_is_gone_is_no_error(pair: tuple[socket.socket, Inbox]) -> None:
    sender, inbox = pair
    sender.close()
    inbox._sock.send(b"x")      # answered by an ICMP port unreachable, which the next call reports
    assert drain(inbox) == []
