"""The centralised all-reduce over plain TCP: one connection a worker, the kernel's defaults but for Nagle's delay.

After HELLO (secret, rank, size) each round is, on each connection, the gradient, one byte that says it has arrived, the
average, and one byte again. The byte plays the part of DBLP's STOP: it makes send latencies comparable.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field

import numpy as np

from protocol import PeerLostError, RemoteProtocolError, RoundStats, ServerStep
from protocol.aggregate import l2_norm, mean_zero_filled
from protocol.handshake import Address, connect
from protocol.sockets import listen_tcp
from testbed.baselines.quiet import Quiet

HELLO = struct.Struct("!32sIQ")      # digest of the secret, rank, float32 values
HELLO_SECONDS = 5.0      # s that a new connection has for it
ARRIVED = b"\x01"
# struct tcp_info, linux/tcp.h
TCP_INFO_BYTES, SND_MSS, TOTAL_RETRANS = 104, 16, 100


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _tcp_info(sock: socket.socket, offset: int) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    return struct.unpack_from("=I", info, offset)[0]


class _Meter:
    """Makes the records of what one side sends over one connection.

    Attributes:
        segment: bytes of a frame: the MSS at the start of the connection. The kernel may change it later (on loopback,
            as the window grows); the frames of a model stay the same number.
        frames: of a gradient.
    """

    def __init__(self, sock: socket.socket, peer: str, direction: str, size_bytes: int) -> None:
        self._sock, self._peer, self._direction = sock, peer, direction
        self.segment = _tcp_info(sock, SND_MSS)
        self.frames = -(-size_bytes // self.segment)
        self._retransmitted = 0
        self._begun = self._latency = 0.0

    def start(self) -> None:
        self._begun = time.monotonic()

    def stop(self) -> None:
        self._latency = time.monotonic() - self._begun

    def record(self, round_: int) -> RoundStats:
        before, self._retransmitted = self._retransmitted, _tcp_info(self._sock, TOTAL_RETRANS)
        return RoundStats(
            peer=self._peer, direction=self._direction, round=round_, latency_s=self._latency, passes=1,
            frames_total=self.frames, frames_sent=self.frames + self._retransmitted - before,
            frames_delivered=self.frames, stale=0, duplicate=0, tolerance=0.0, in_clr=False, early_stop=False,
        )


@dataclass
class _Peer:
    """A worker as the server sees it: where to put what it sends, and what it is being sent."""

    name: str
    sock: socket.socket
    gradient: np.ndarray
    meter: _Meter
    into: memoryview = field(default_factory=lambda: memoryview(b""))
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    answered: bool = False
    """The worker has said that it has the average."""
    gone: bool = False
    """It has closed its connection between two rounds."""


class TcpServer:
    """Collects the gradients, averages them and sends the average back. A context manager.

    Raises:
        PeerLostError: not all workers came in time, or one is gone, by name.
    """

    def __init__(self, address: Address, workers: int, secret: str, timeout: float) -> None:
        self._workers, self._secret, self._timeout = workers, secret, timeout
        self._listener = listen_tcp(*address)
        self.address: Address = self._listener.getsockname()
        self.loop = Quiet()
        self._selector = selectors.DefaultSelector()
        self._peers: list[_Peer] = []
        self._step = 0

    def accept(self) -> None:
        """Wait for all workers."""
        deadline = time.monotonic() + self._timeout
        peers: dict[int, _Peer] = {}
        while len(peers) < self._workers:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                missing = [f"w{rank + 1}" for rank in range(self._workers) if rank not in peers]
                raise PeerLostError(
                    missing[0], f"{', '.join(missing)} did not connect within {self._timeout:g} s"
                ) from None
            sock.settimeout(HELLO_SECONDS)
            with contextlib.suppress(OSError):      # a stranger that says nothing
                digest, rank, size = HELLO.unpack(sock.recv(HELLO.size, socket.MSG_WAITALL).ljust(HELLO.size, b"\0"))
                if hmac.compare_digest(digest, _digest(self._secret)) and rank not in peers and rank < self._workers:
                    peers[rank] = self._admit(sock, f"w{rank + 1}", size)
                    continue
            sock.close()
        self._peers = [peers[rank] for rank in range(self._workers)]
        sizes = {len(peer.gradient) for peer in self._peers}
        if len(sizes) > 1:
            raise RemoteProtocolError(f"the workers' gradients have different sizes: {sorted(sizes)} values")
        self._average = np.zeros(sizes.pop(), np.float32)

    def _admit(self, sock: socket.socket, name: str, size: int) -> _Peer:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        return _Peer(name, sock, np.zeros(size, np.float32), _Meter(sock, name, "broadcast", 4 * size))

    def all_reduce(self) -> ServerStep | None:
        """One step: receive all, average, send to all. None once all workers have left."""
        for peer in self._peers:
            peer.into = memoryview(peer.gradient).cast("B")
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
        while any(peer.into for peer in self._peers):
            for key, _ in self._selector.select():
                self._receive(key.data)
            gone = [peer for peer in self._peers if peer.gone]
            if len(gone) == self._workers:
                return None
            if gone and any(len(peer.into) < peer.gradient.nbytes for peer in self._peers):
                raise self._lost(gone[0], "it closed its connection while others go on")
        mean_zero_filled([peer.gradient for peer in self._peers], self._average)
        norm = l2_norm(self._average)
        for peer in self._peers:
            peer.out, peer.answered = memoryview(self._average).cast("B"), False
            peer.meter.start()
            self._selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        while not all(peer.answered for peer in self._peers):
            for key, events in self._selector.select():
                self._send(key.data, events)
        records = [peer.meter.record(2 * self._step + 1) for peer in self._peers]
        self._step += 1
        return ServerStep(self._step - 1, norm, records)

    def _receive(self, peer: _Peer) -> None:
        if not peer.into:      # it says something out of turn, or is gone
            raise self._lost(peer, "it closed its connection")
        try:
            count = peer.sock.recv_into(peer.into)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from None
        if not count and len(peer.into) < peer.gradient.nbytes:
            raise self._lost(peer, "it closed its connection")
        if not count:
            peer.gone = True
            self._selector.unregister(peer.sock)
            return
        peer.into = peer.into[count:]
        if peer.into:
            return
        try:
            peer.sock.send(ARRIVED)      # one byte finds room: all before it has been acknowledged
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from None

    def _send(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and peer.out:
                peer.out = peer.out[peer.sock.send(peer.out) :]
                if not peer.out:
                    self._selector.modify(peer.sock, selectors.EVENT_READ, peer)
            if events & selectors.EVENT_READ:
                if not peer.sock.recv(1):
                    raise self._lost(peer, "it closed its connection")
                peer.meter.stop()
                peer.answered = True
                self._selector.unregister(peer.sock)      # its next gradient may come while others still receive
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from None

    def _lost(self, peer: _Peer, why: str) -> PeerLostError:
        return PeerLostError(peer.name, f"lost {peer.name} in iteration {self._step}: {why}")

    def close(self) -> None:
        self._listener.close()
        self._selector.close()
        for peer in self._peers:
            peer.sock.close()

    def __enter__(self) -> TcpServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TcpWorker:
    """A worker's end; blocking, since it waits for one peer only. A context manager.

    Raises:
        PeerLostError: the server did not come in time, or is gone.
    """

    def __init__(self, address: Address, rank: int, size: int, secret: str, timeout: float) -> None:
        self._sock = connect(address, timeout)
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(HELLO.pack(_digest(secret), rank, size))
        self._meter = _Meter(self._sock, f"w{rank + 1}", "reduce", 4 * size)
        self._step = 0
        self.loop = Quiet()
        self.last: RoundStats | None = None

    @property
    def frames(self) -> dict[str, int]:
        """For the record of the run: bytes of a segment, and segments of a gradient."""
        return {"chunk_bytes": self._meter.segment, "frames": self._meter.frames}

    def all_reduce(self, gradient: np.ndarray, out: np.ndarray) -> None:
        """Send the gradient, receive the average of all workers'; both (size,) float32."""
        try:
            self._meter.start()
            self._sock.sendall(memoryview(gradient).cast("B"))
            self._read(memoryview(bytearray(1)))
            self._meter.stop()
            self._read(memoryview(out).cast("B"))
            self._sock.sendall(ARRIVED)
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        self.last = self._meter.record(2 * self._step)
        self._step += 1

    def _read(self, into: memoryview) -> None:
        while into:
            count = self._sock.recv_into(into)
            if not count:
                raise self._lost("it closed the connection; its own log says why")
            into = into[count:]

    def _lost(self, why: str) -> PeerLostError:
        return PeerLostError("the server", f"lost the server in iteration {self._step}: {why}")

    def __enter__(self) -> TcpWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sock.close()
