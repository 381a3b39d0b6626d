"""Every number of the transport that a user may change, with its unit, its default and why it is that."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.aggregate import AGGREGATES
from protocol.errors import LocalProtocolError
from protocol.order import ORDERS

# UDP destination ports of gradient data. One aligned block, so that a tc u32 filter matches it with a single mask
# (port & 0xFF00 == 0xCC00) and a burst can hit gradient data and nothing else.
DATA_PORT_BASE = 52224
DATA_PORT_COUNT = 256
# The server takes the lower half of the block and the workers the upper, so both can share one host.
WORKER_PORT_OFFSET = DATA_PORT_COUNT // 2

IP_UDP_HEADER = 28      # bytes: IPv4 without options (RFC 791) + UDP (RFC 768)
ETHERNET_HEADER = 14    # bytes: what a Linux qdisc counts on top of the IP packet

PACING_MODES = ("none", "fixed", "share")
REPAIRS = ("per_pass", "none")
BROADCASTS = ("lossy", "agreed", "complete")


@dataclass(frozen=True)
class Timeouts:
    """All waiting of the transport, shortest first. None of them ends a slow step of training.

    Attributes:
        handshake: s for one peer to complete the handshake once connected.
        keepalive: s of silence after which TCP asks whether the peer's host still lives; after three unanswered
            questions, one second apart, it counts as lost. A dead process is seen at once, through its closed socket.
        connect: s that a worker keeps trying to reach the server, and that the server waits for all its workers.
        stall: s without any newly delivered chunk in a round that has begun, after which the round fails.
    """

    handshake: float = 5.0
    keepalive: float = 3.0
    connect: float = 60.0
    stall: float = 60.0


@dataclass(frozen=True)
class Polling:
    """A sender that polls its control channel, as the paper's authors' did: what makes each pass of theirs cost time.

    On every pass, over all chunks whether they are sent again or not, it waits `wait` s after each `every` chunks.

    Attributes:
        every: chunks between two waits.
        wait: s.
    """

    every: int
    wait: float

    def __post_init__(self) -> None:
        if self.every < 1 or self.wait < 0:
            raise LocalProtocolError(f"polling every {self.every} chunks for {self.wait} s; at least 1, and 0 s")


@dataclass(frozen=True)
class TransportConfig:
    """Settings of one endpoint.

    The server's `shares`, `broadcast`, `order`, `aggregate` and `error_feedback` hold for the whole job; it tells the
    workers what they must know of them.

    Attributes:
        mtu: bytes of one IP packet. A frame fills it exactly (paper, section IV-B) and is never fragmented.
        pacing: `share` (the server grants each sender an equal share of its link, and a sender keeps that rate
            *delivered*), `fixed` (rate of `fixed_rate`), or `none` (the paper: as fast as the socket takes it).
        link_rate: bit/s of this endpoint's own link; needed on the server for `share`, a cap on the workers.
        shares: bit/s that the server grants to each worker, in rank order, where the narrowest link on the way is not
            its own; None divides `link_rate` equally.
        fixed_rate: bit/s, for pacing `fixed`.
        polling: makes each pass of this endpoint's senders cost time; None, the default, leaves only its frames.
        broadcast: what a tolerance means for the way back. `lossy` (the paper): each worker may miss other chunks, and
            replicas drift apart. `agreed`: the server leaves out the same chunks for all, the last ones in its order,
            and delivers the others to each. `complete`: nothing is left out.
        order: in which a round sends the chunks, by its name in `protocol.order.ORDERS`.
        aggregate: the mean at the server, by its name in `protocol.aggregate.AGGREGATES`.
        error_feedback: a worker adds what did not arrive of a gradient to its next one; the server does so with what
            it leaves out of an `agreed` broadcast.
        repair: what the receiver of a gradient does at the end of a pass. `per_pass`: ask for the missing chunks, as in
            Algorithm 1; `none`: end the round with what has arrived, so that there is one pass.
        data_port_base: first UDP port of the data block, or 0 to let the kernel choose (no tc filter then).
        send_buffer: bytes of SO_SNDBUF on the UDP socket. Small, since an early stop cannot recall what is queued.
        receive_buffer: bytes of SO_RCVBUF on the UDP socket, to ride out a descheduled receiver.
        progress_interval: s between PROGRESS reports of a receiver; they steer pacing within a pass.
        segmentation: use UDP_SEGMENT and UDP_GRO where the kernel has them; False sends datagrams one by one.
        secret: shared by all endpoints of one job; peers that do not know it are refused.
        timeouts: see `Timeouts`.
    """

    mtu: int = 1500
    pacing: str = "share"
    link_rate: float | None = None
    shares: tuple[float, ...] | None = None
    fixed_rate: float | None = None
    polling: Polling | None = None
    broadcast: str = "lossy"
    order: str = "sequential"
    aggregate: str = "zero_fill"
    error_feedback: bool = False
    repair: str = "per_pass"
    data_port_base: int = 0
    send_buffer: int = 256 << 10
    receive_buffer: int = 16 << 20
    progress_interval: float = 0.01
    segmentation: bool = True
    secret: bytes = field(default=b"", repr=False)
    timeouts: Timeouts = Timeouts()

    def __post_init__(self) -> None:
        if not 576 <= self.mtu <= 65535:
            raise LocalProtocolError(f"mtu is {self.mtu} bytes; it must lie within 576 and 65535")
        if self.data_port_base and not 0 < self.data_port_base <= (1 << 16) - DATA_PORT_COUNT:
            raise LocalProtocolError(
                f"data_port_base is {self.data_port_base}; a block of {DATA_PORT_COUNT} ports must fit above it"
            )
        for name, known in (
            ("pacing", PACING_MODES), ("broadcast", BROADCASTS), ("order", ORDERS), ("aggregate", AGGREGATES)
        ):
            if (value := getattr(self, name)) not in known:
                raise LocalProtocolError(f"{name} is {value!r}; known are {', '.join(known)}")
        if self.repair not in REPAIRS:
            raise LocalProtocolError(f"repair is {self.repair!r}; known are {', '.join(REPAIRS)}")
        if self.repair == "none" and self.broadcast != "lossy":
            raise LocalProtocolError(f"broadcast is {self.broadcast!r}, which no round without repair can keep")
        if self.pacing == "fixed" and not self.fixed_rate:
            raise LocalProtocolError("pacing 'fixed' needs fixed_rate, in bit/s")
        if self.shares is not None and not all(share > 0 for share in self.shares):
            raise LocalProtocolError(f"shares are {self.shares}; each must be above 0 bit/s")

    def data_port(self, rank: int, of_worker: bool) -> int:
        """The UDP port of the channel between the server and the worker of this rank, on one of its sides; 0 for any.

        Raises:
            LocalProtocolError: the data block has no port for this rank.
        """
        if not self.data_port_base:
            return 0
        if rank >= WORKER_PORT_OFFSET:
            raise LocalProtocolError(
                f"rank {rank} has no port in the data block, which serves {WORKER_PORT_OFFSET} workers; "
                "set data_port_base to 0"
            )
        return self.data_port_base + rank + (WORKER_PORT_OFFSET if of_worker else 0)

    def share(self, rank: int, workers: int) -> float | None:
        """bit/s that the server grants to a worker, or None for no limit."""
        if self.shares is not None:
            return self.shares[rank]
        return self.link_rate / workers if self.link_rate else None

    @property
    def chunk_bytes(self) -> int:
        """Payload bytes of a frame: what the MTU leaves, down to a multiple of 4 so that no float is cut."""
        return (self.mtu - IP_UDP_HEADER - FRAME_HEADER) // 4 * 4

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame as UDP carries it: header and chunk."""
        return FRAME_HEADER + self.chunk_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes of a frame as a link's rate limit counts it: with UDP, IP and Ethernet headers."""
        return self.frame_bytes + IP_UDP_HEADER + ETHERNET_HEADER


FRAME_HEADER = 16       # bytes; the fields stand in wire.py
