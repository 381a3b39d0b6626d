"""Algorithm 3: the server's half of the centralised all-reduce.

The paper spawns a thread per worker. Here one event loop serves them all: the state is per worker, the wait is for all.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol import handshake
from protocol.aggregate import AGGREGATES, l2_norm
from protocol.config import TransportConfig
from protocol.endpoint import Channel, EventLoop, Impairment
from protocol.errors import DblpError, LocalProtocolError, PeerLostError, RemoteProtocolError
from protocol.order import ORDERS
from protocol.receiver import Receiver
from protocol.sockets import listen_tcp, open_udp
from protocol.stats import RoundStats, round_stats
from protocol.tolerance import Fixed, ToleranceSchedule, allowed_missing
from protocol.wire import ControlDecoder, Error, Hello, Round, Tensor, Welcome, model_frames, next_round

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerStep:
    """One all-reduce as the server saw it.

    Attributes:
        step: from 0.
        gradient_norm: L2 norm of the averaged gradient.
        broadcasts: one record per worker, in rank order.
    """

    step: int
    gradient_norm: float
    broadcasts: list[RoundStats]


@dataclass
class _Admitted:
    """A worker that has passed the handshake, before the sizes of the job are known to all."""

    hello: Hello
    nonces: bytes
    host: str
    tcp: socket.socket
    decoder: ControlDecoder


class Server:
    """Collects the workers' gradients, averages them and sends the average back. A context manager.

    Args:
        address: (host, port) to listen on; port 0 lets the kernel choose, see `address`.
        workers: how many to wait for.
        config: mtu, pacing, rates, secret.
        tolerance: policy in force for both directions; default: nothing may be lost.
        impairment: per worker rank, loss drawn on receipt; for engines without a network.

    Attributes:
        address: (host, port) as bound.
        size: float32 values of the gradient, known after `accept`.
        tensors: what the workers announced.

    Raises:
        PortInUseError: the TCP port is taken.
    """

    def __init__(
        self,
        address: handshake.Address,
        workers: int,
        config: TransportConfig | None = None,
        tolerance: ToleranceSchedule | None = None,
        impairment: Callable[[int], Impairment | None] = lambda rank: None,
    ) -> None:
        if workers < 1:
            raise LocalProtocolError(f"workers is {workers}; at least one is needed")
        self.workers, self.config = workers, config or TransportConfig()
        if self.config.shares is not None and len(self.config.shares) != workers:
            raise LocalProtocolError(f"{len(self.config.shares)} shares for {workers} workers; give each one")
        self.tolerance: ToleranceSchedule = tolerance or Fixed(0.0)
        self.loop = EventLoop()
        self._impairment = impairment
        self._listener = listen_tcp(*address)
        self.address: handshake.Address = self._listener.getsockname()
        self._channels: list[Channel] = []
        self._step = 0
        self._round = 0

    # --- handshake ---

    def accept(self) -> None:
        """Wait for all workers and start the session. Peers that do not fit are told why and turned away.

        Raises:
            PeerLostError: not all workers came within `config.timeouts.connect` (the message counts the missing and
                quotes the last refusal), or one that had come is gone again.
        """
        deadline = time.monotonic() + self.config.timeouts.connect
        admitted: dict[int, _Admitted] = {}
        refusal = ""
        try:
            while len(admitted) < self.workers:
                self._listener.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    tcp, (host, _) = self._listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(self.workers)) - set(admitted))
                    raise PeerLostError(
                        "workers",
                        f"{len(missing)} of {self.workers} workers (ranks {missing}) did not connect within "
                        f"{self.config.timeouts.connect:g} s" + refusal,
                    ) from None
                try:
                    hello, nonces, decoder = handshake.examine(tcp, self.config)
                    self._check(hello, admitted)
                except (DblpError, OSError) as error:      # OSError: it hung up at once
                    refusal = f"; last refused: {error}"
                    log.warning("refused a connection: %s", error)
                    handshake.refuse(tcp, error)
                    continue
                admitted[hello.rank] = _Admitted(hello, nonces, host, tcp, decoder)
            self._open([admitted[rank] for rank in range(self.workers)])
        except BaseException as error:
            for worker in admitted.values():
                handshake.refuse(worker.tcp, error)
            raise

    def _check(self, hello: Hello, admitted: dict[int, _Admitted]) -> None:
        if not 0 <= hello.rank < self.workers:
            raise RemoteProtocolError(
                f"{hello.name} has rank {hello.rank}, but the job has ranks 0 to {self.workers - 1}"
            )
        if hello.rank in admitted:
            holder = admitted[hello.rank].hello.name
            raise RemoteProtocolError(f"{hello.name} has rank {hello.rank}, which {holder} holds")
        for other in admitted.values():
            if (hello.size_bytes, hello.tensors) != (other.hello.size_bytes, other.hello.tensors):
                raise RemoteProtocolError(
                    f"{hello.name} trains another model ({hello.size_bytes} bytes in {len(hello.tensors)} tensors) "
                    f"than {other.hello.name} ({other.hello.size_bytes} bytes in {len(other.hello.tensors)})"
                )

    def _open(self, workers: list[_Admitted]) -> None:
        hello = workers[0].hello
        self.size = hello.size_bytes // 4
        self.tensors = [Tensor(name, tuple(shape), dtype) for name, shape, dtype in hello.tensors]
        session = secrets.randbits(32)
        shares = [self.config.share(rank, self.workers) for rank in range(self.workers)]
        self._frames = model_frames(hello.size_bytes, session, self.config)
        self._order = ORDERS[self.config.order](len(self._frames))
        self._left_out = np.zeros(len(self._frames), bool)      # of the last broadcast, where all agree on it
        self._average = np.zeros(self.size, np.float32)
        for rank, worker in enumerate(workers):
            udp = open_udp(self.config, worker.tcp.getsockname()[0], self.config.data_port(rank, of_worker=False))
            udp.connect((worker.host, worker.hello.udp_port))
            receiver = Receiver(hello.size_bytes, self.config.chunk_bytes, session)
            channel = Channel(
                worker.hello.name, worker.tcp, udp, self.config, self._frames, receiver, shares[rank],
                worker.decoder,
            )
            channel.impairment = self._impairment(rank)
            self._channels.append(channel)
        self._arm()
        for worker, channel in zip(workers, self._channels, strict=True):
            reply = Welcome(
                worker.hello.version, session, channel.udp.getsockname()[1], self.workers, shares[worker.hello.rank],
                self.config.order, self.config.error_feedback,
            )
            worker.tcp.settimeout(self.config.timeouts.handshake)
            try:
                handshake.welcome(worker.tcp, self.config, worker.nonces, reply)
            except OSError as error:
                name = worker.hello.name
                raise PeerLostError(name, f"lost {name} before the first round: {error.strerror or error}") from None
            worker.tcp.setblocking(False)
            self.loop.add(channel)
        self._announce(self._round, self.tolerance.tolerance)

    # --- rounds ---

    def all_reduce(self) -> ServerStep | None:
        """One step of Algorithm 3: receive all, average, detect, broadcast.

        Returns:
            The step's record, or None once all workers have said goodbye.

        Raises:
            PeerLostError: a worker is gone, by name; the others have been told.
            RemoteProtocolError: a worker broke the protocol or gave up, and why; the others have been told.
        """
        try:
            self.loop.run(lambda: self._all_received() or self._all_gone())
            if self._all_gone():
                return None
            return self._average_and_broadcast()
        except (DblpError, OSError) as error:
            self._tell(error)
            raise

    def serve(self, on_step: Callable[[ServerStep], None] = lambda step: None) -> int:
        """Accept the workers and serve them until all have said goodbye; the number of steps done."""
        self.accept()
        while (step := self.all_reduce()) is not None:
            on_step(step)
        return self._step

    def _average_and_broadcast(self) -> ServerStep:
        receivers = [channel.receiver for channel in self._channels]
        AGGREGATES[self.config.aggregate](
            [receiver.gradient.view(np.float32) for receiver in receivers], self._average,
            [receiver.arrived for receiver in receivers], self.config.chunk_bytes // 4,
        )
        norm = l2_norm(self._average)
        self.tolerance.observe(self._step, norm)
        broadcast = next_round(self._round)
        tolerance = 0.0 if self.config.broadcast == "complete" else self.tolerance.tolerance
        order = self._load(broadcast, tolerance)
        self._announce(broadcast, tolerance)
        in_force = tolerance, self.tolerance.in_clr
        # The mean is taken, so the buffers are free. A worker that is done early may send its next gradient while this
        # broadcast still goes on to others.
        self._round = next_round(self._round, 2)
        self._arm()
        self._announce(self._round, self.tolerance.tolerance)
        for channel in self._channels:
            channel.begin(broadcast, order)
        self.loop.run(lambda: not any(channel.sender.active for channel in self._channels))
        step = ServerStep(
            self._step, norm,
            [round_stats(channel.sender, channel.peer, "broadcast", *in_force) for channel in self._channels],
        )
        self._step += 1
        return step

    def _load(self, broadcast: int, tolerance: float) -> np.ndarray | None:
        """Put the average into the frames; which chunks are sent, in their order.

        `agreed`: as few as the tolerance allows. A worker cannot stop before it has all of them nor wait for others,
        so it need not be told which they are.
        """
        frames = self._frames
        if self.config.error_feedback:      # the frames still hold what the last broadcast left out
            frames.values[~self._left_out] = 0
            frames.add(self._average)
        else:
            frames.load(self._average)
        frames.words[:, 2] = broadcast
        order = self._order(broadcast, frames.values)
        if self.config.broadcast != "agreed":
            return order
        sent = len(frames) - allowed_missing(tolerance, len(frames))
        order = order[:sent] if order is not None else np.arange(sent)
        self._left_out[:] = True
        self._left_out[order] = False
        return order

    def _arm(self) -> None:
        for channel in self._channels:
            channel.receiver.arm(self._round, self.tolerance.tolerance)

    def _announce(self, round_: int, tolerance: float) -> None:
        for channel in self._channels:
            channel.say(Round(round_, tolerance, self.tolerance.in_clr))

    def _all_received(self) -> bool:
        gone = next((channel for channel in self._channels if channel.closed), None)
        busy = next((channel for channel in self._channels if channel.receiver.heard is not None), None)
        if gone and busy:
            raise gone.lost(f"it said goodbye while {busy.peer} goes on")
        return all(channel.receiver.done for channel in self._channels)

    def _all_gone(self) -> bool:
        return all(channel.closed for channel in self._channels)

    def _tell(self, error: Exception) -> None:
        for channel in self._channels:
            with contextlib.suppress(DblpError, OSError):
                channel.say(Error(str(error)))

    def close(self) -> None:
        """Close all sockets."""
        self._listener.close()
        for channel in self._channels:      # an `accept` that failed half-way has some that the loop does not know
            channel.close()
        self.loop.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

