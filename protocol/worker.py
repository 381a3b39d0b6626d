"""Algorithm 4: the worker's half of the centralised all-reduce."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

import numpy as np

from protocol import handshake
from protocol.config import TransportConfig
from protocol.endpoint import Channel, EventLoop, Impairment
from protocol.errors import DblpError, LocalProtocolError, PeerLostError
from protocol.order import ORDERS
from protocol.receiver import Receiver
from protocol.sockets import open_udp
from protocol.stats import RoundStats, round_stats
from protocol.wire import Bye, Error, Tensor, model_frames, next_round

GOODBYE_SECONDS = 2.0      # s that close() gives a BYE to leave; then it closes all the same


class Worker:
    """A worker connected to its server. A context manager; `close` says goodbye.

    Args:
        server: (host, port) of the server's TCP socket.
        rank: 0 to workers - 1, unique in the job.
        size: float32 values of the flat gradient.
        config: must agree with the server's in `mtu` and `secret`; what of it the server's overrides stands there.
        name: for people, in logs and errors; default `w<rank + 1>`.
        tensors: names, shapes and dtypes in flat order; the server checks that all workers agree.

    Attributes:
        loop: the event loop, for a program that must do more while it waits.
        last: records of the last `all_reduce`; the broadcast's record is the server's.

    Raises:
        PeerLostError: no server within `config.timeouts.connect`.
        RemoteProtocolError: the server refused, and why.
        PortInUseError: the UDP port is taken.
    """

    def __init__(
        self,
        server: handshake.Address,
        rank: int,
        size: int,
        config: TransportConfig | None = None,
        name: str | None = None,
        tensors: Sequence[Tensor] = (),
        impairment: Impairment | None = None,
    ) -> None:
        config = config or TransportConfig()
        if size < 1:
            raise LocalProtocolError(f"size is {size}; a gradient has at least one value")
        described = sum(math.prod(tensor.shape) for tensor in tensors)
        if tensors and described != size:
            raise LocalProtocolError(f"the tensors hold {described} values, but size is {size}")
        self.size, self.rank, self.name = size, rank, name or f"w{rank + 1}"
        self._config = config
        self._round = 0
        self.last: RoundStats | None = None
        self.loop = EventLoop()
        tcp = handshake.connect(server, config.timeouts.connect)
        udp = None
        try:
            udp = open_udp(config, tcp.getsockname()[0], config.data_port(rank, of_worker=True))
            welcome, decoder = handshake.introduce(
                tcp, config, rank, self.name, udp.getsockname()[1], 4 * size, tensors
            )
            udp.connect((tcp.getpeername()[0], welcome.udp_port))
        except BaseException:
            tcp.close()
            if udp is not None:
                udp.close()
            raise
        self.workers = welcome.workers
        self._frames = model_frames(4 * size, welcome.session, config)
        self._channel = Channel(
            "the server", tcp, udp, config, self._frames, Receiver(4 * size, config.chunk_bytes, welcome.session),
            welcome.share, decoder,
        )
        self._order = ORDERS[welcome.order](len(self._frames))
        self._error_feedback = welcome.error_feedback
        self._channel.impairment = impairment
        self.loop.add(self._channel)

    def all_reduce(self, gradient: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Send the gradient, wait for the average of all workers' (Algorithm 4, lines 4 to 6).

        Args:
            gradient: (size,) float32, C-contiguous.
            out: (size,) float32 for the average; may be `gradient` itself. Default: a view that the next call
                overwrites.

        Returns:
            `out`, or the view. Chunks that stayed missing are zero.

        Raises:
            LocalProtocolError: wrong shape or dtype.
            PeerLostError, RemoteProtocolError: the round cannot end; the message names who and why.
        """
        if gradient.dtype != np.float32 or gradient.shape != (self.size,) or not gradient.flags.c_contiguous:
            raise LocalProtocolError(
                f"gradient is {gradient.dtype}{gradient.shape}; all_reduce takes contiguous float32({self.size},)"
            )
        channel, sender, receiver = self._channel, self._channel.sender, self._channel.receiver
        # With error feedback, the frames still hold the last gradient, and what of it did not arrive goes out with this
        # one. Before the first they hold zeros, of which nothing has arrived.
        if self._error_feedback:
            self._frames.values[sender.delivered] = 0
            self._frames.add(gradient)
        else:
            self._frames.load(gradient)
        # The average may overtake the STOP on its other channel, so its round is armed before this one is sent.
        receiver.arm(next_round(self._round))
        for round_ in [r for r in channel.tolerances if r not in (self._round, next_round(self._round))]:
            del channel.tolerances[round_]
        if announced := channel.tolerances.get(receiver.round):
            receiver.set_tolerance(receiver.round, announced.tolerance)
        channel.start(self._round, self._order(self._round, self._frames.values))
        try:
            self.loop.run(
                lambda: channel.closed or (receiver.done and not sender.active and not channel.control_waiting)
            )
            if channel.closed:
                raise channel.lost("it said goodbye before the workers did")
        except DblpError as error:
            self._abandon(error)
            raise
        announced = channel.tolerances[self._round]
        self.last = round_stats(sender, self.name, "reduce", announced.tolerance, announced.in_clr)
        self._round = next_round(self._round, 2)
        average = receiver.gradient.view(np.float32)
        if out is None:
            return average
        np.copyto(out, average)
        return out

    @property
    def delivered(self) -> np.ndarray:
        """(chunks,) bool: what the server had of the last gradient when it stopped the round."""
        return self._channel.sender.delivered

    @property
    def dropped(self) -> dict[str, int]:
        """Frames from the server that were not taken, by reason, since the beginning."""
        return {reason.value: count for reason, count in self._channel.receiver.dropped.items()}

    def close(self) -> None:
        """Say goodbye and close."""
        with contextlib.suppress(DblpError, OSError):
            self._channel.say(Bye())
            deadline = time.monotonic() + GOODBYE_SECONDS
            self.loop.run(
                lambda: not self._channel.control_waiting or time.monotonic() > deadline, poll=0.05
            )
        self.loop.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        """Close without a BYE, telling the server why as far as it still listens."""
        if not isinstance(error, PeerLostError):
            with contextlib.suppress(DblpError, OSError):
                self._channel.say(Error(f"{type(error).__name__}: {error}"))
        self.loop.close()
