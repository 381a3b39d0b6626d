"""The only sockets and the only clock: UDP for frames, TCP for control, one event loop for all peers of a process.

Frames move in batches: one `send` carries up to 64 KB of them cut apart by the kernel (UDP_SEGMENT, udp(7)), one
`recvmsg` returns up to 64 KB of them put together by it (UDP_GRO). Where a kernel has neither, the same code sends and
receives one frame a call.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import selectors
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from protocol.config import TransportConfig
from protocol.errors import DropReason, LocalProtocolError, PeerLostError, RemoteProtocolError
from protocol.inbox import UDP_GRO, Inbox
from protocol.pacing import Pacer
from protocol.receiver import Receiver
from protocol.sender import Sender
from protocol.wire import (
    Bitmap,
    Bye,
    ControlDecoder,
    Error,
    FrameArray,
    Message,
    Probe,
    Progress,
    Round,
    Stop,
    encode,
)

log = logging.getLogger(__name__)

UDP_SEGMENT = 103       # linux/udp.h
GSO_BYTES = 65507        # the largest UDP payload over IPv4
GSO_SEGMENTS = 64        # UDP_MAX_SEGMENTS of kernels before 6.9
RECEIVES_PER_TURN = 4       # calls on one socket before the others get their turn
IDLE_POLL = 0.001        # s between looks at SIOCOUTQ, which no event announces

now = time.monotonic


class Impairment(Protocol):
    """Loss drawn in the receiving endpoint, where there is no link to inject it on."""

    def keep(self, frames: int) -> np.ndarray | None:
        """(frames,) bool: those that arrive; None for all."""


class Channel:
    """One peer: its sockets, a sender towards it and a receiver from it.

    Args:
        peer: name of the peer, for messages to people.
        tcp: connected control socket.
        udp: connected data socket.
        config: settings of this endpoint.
        frames: what `sender` sends; several channels of a server share one array.
        receiver: where the peer's frames go.
        share: bit/s that the server grants this sender, or None.
        decoder: carries on where the handshake stopped reading.
    """

    def __init__(
        self,
        peer: str,
        tcp: socket.socket,
        udp: socket.socket,
        config: TransportConfig,
        frames: FrameArray,
        receiver: Receiver,
        share: float | None,
        decoder: ControlDecoder,
    ) -> None:
        self.peer, self.tcp, self.udp, self.config = peer, tcp, udp, config
        self.frames, self.receiver, self.sender = frames, receiver, Sender(len(frames), config.polling)
        self.impairment: Impairment | None = None
        self.tolerances: dict[int, Round] = {}      # as the server announced them, by round
        self.closed = False
        self._decoder = decoder
        self._control_out = bytearray()
        self._frame_bytes = config.frame_bytes
        self._batch = min(GSO_BYTES // self._frame_bytes, GSO_SEGMENTS)
        self._offload()
        self.pacer = Pacer(config, share, self._batch)
        self._scratch = FrameArray(self._batch, self._frame_bytes)
        self._inbox = Inbox(udp, self._frame_bytes)
        self._reported = 0.0
        self.blocked = False       # the UDP socket takes no more for now
        tcp.setblocking(False)

    def _offload(self) -> None:
        """Turn on UDP_SEGMENT and UDP_GRO, or fall back to one frame a call and say so."""
        if self.config.segmentation:
            try:
                self.udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, self._frame_bytes)
                self.udp.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
                return
            except OSError as error:
                log.warning("no UDP segmentation offload here (%s): one frame a call, several times slower", error)
        self._batch = 1

    # --- sending ---

    def start(self, round_: int, order: np.ndarray | None = None) -> None:
        """Send `frames`, as they stand now, as round `round_` in this order (see `Sender.start`)."""
        self.frames.words[:, 2] = round_
        self.begin(round_, order)

    def begin(self, round_: int, order: np.ndarray | None = None) -> None:
        """As `start`, where the frames carry the round already."""
        time_ = now()
        self.sender.start(round_, time_, order)
        self.pacer.start(time_)
        self.blocked = False

    def pump(self) -> float | None:
        """Send what credit and socket allow; s until there is more to send, or None where an event will tell."""
        while not self.blocked and (wait := self.sender.wait(time_ := now())) is not None:
            if wait > 0:
                return wait
            chosen = self.sender.peek(self._batch)
            count = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
            if self.pacer.allowance(time_) < count:
                return self.pacer.wait(count)
            if isinstance(chosen, slice):
                data = self.frames.bytes[chosen.start * self._frame_bytes : chosen.stop * self._frame_bytes]
            else:
                np.take(self.frames.raw, chosen, axis=0, out=self._scratch.raw[:count], mode="clip")
                data = self._scratch.bytes[: count * self._frame_bytes]
            if not self._send(data):
                return None
            self.pacer.spend(count)
            self.sender.advance(count, now())
        self.flush()
        return None

    def _send(self, data: memoryview) -> bool:
        try:
            self.udp.send(data)
        except BlockingIOError:
            self.blocked = True
            return False
        except ConnectionRefusedError:
            # An ICMP port unreachable of an earlier frame: the peer's UDP socket is gone. Its TCP connection tells
            # whether the peer is, so the frame counts as sent and lost.
            return True
        except OSError as error:
            if error.errno in (errno.EIO, errno.EINVAL) and self._batch > 1:
                log.warning("the device refuses UDP segmentation (%s): one frame a call, several times slower", error)
                self.udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
                self._batch = 1
                return self._send(data[: self._frame_bytes]) and self._send_rest(data)
            if error.errno == errno.ENOBUFS:      # the device queue is full: lost, as on any queue
                return True
            if error.errno == errno.EMSGSIZE:
                raise LocalProtocolError(
                    f"a frame of {self.config.mtu} bytes does not fit the path to {self.peer}; "
                    "lower mtu to the path's MTU"
                ) from None
            raise
        return True

    def _send_rest(self, data: memoryview) -> bool:
        """The frames of a refused batch but the first, one by one. Those that find no room are lost and repaired."""
        return all(
            self._send(data[start : start + self._frame_bytes])
            for start in range(self._frame_bytes, len(data), self._frame_bytes)
        ) or True

    def outgoing(self) -> int:
        """Bytes that have left this endpoint but not yet reached a reader (SIOCOUTQ, udp(7))."""
        return struct.unpack("i", fcntl.ioctl(self.udp, termios.TIOCOUTQ, b"\0" * 4))[0]

    # --- receiving ---

    def read_frames(self, turns: int | None = RECEIVES_PER_TURN) -> None:
        """Take frames off the socket: `turns` calls, or all there are with None."""
        while turns is None or turns > 0:
            batch = self._inbox.read()
            if batch is None:
                break
            words, chunks = batch
            if self.impairment is not None and (kept := self.impairment.keep(len(words))) is not None:
                words, chunks = words[kept], chunks[kept]
            self.receiver.take(words, chunks, now())
            if turns is not None:
                turns -= 1
        self.receiver.dropped[DropReason.LENGTH] += self._inbox.malformed
        self._inbox.malformed = 0

    def read_control(self) -> None:
        """Take what the peer says.

        Raises:
            PeerLostError: the connection ended without a BYE.
            RemoteProtocolError: the peer broke the protocol, or gave up and said why.
        """
        if self.closed:
            return
        try:
            data = self.tcp.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            raise self.lost(error.strerror or str(error)) from None
        if not data:
            raise self.lost("it closed the control connection; its own log says why")
        self._decoder.feed(data)
        self.read_messages()

    def read_messages(self) -> None:
        """Handle the control messages that have arrived whole.

        Raises:
            RemoteProtocolError: as `read_control`.
        """
        try:
            for message in self._decoder:
                if isinstance(message, Error):
                    break
                self._handle(message)
            else:
                return
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self.peer} broke the protocol: {error}") from None
        raise RemoteProtocolError(f"{self.peer} gave up: {message.text}")

    def _handle(self, message: Message) -> None:
        if isinstance(message, Bitmap | Progress | Stop):
            if (news := self.sender.handle(message, now())) is not None:
                self.pacer.observe(*news)
        elif isinstance(message, Probe):
            self.read_frames(turns=None)
            self.receiver.probe(message)
        elif isinstance(message, Round):
            self.tolerances[message.round] = message
            self.receiver.set_tolerance(message.round, message.tolerance)
        elif isinstance(message, Bye):
            self.closed = True
        else:
            raise RemoteProtocolError(f"{type(message).__name__.upper()} after the handshake")

    def lost(self, why: str) -> PeerLostError:
        """The error for a peer that is gone, with the round it happened in."""
        where = f"round {self.sender.round}" if self.sender.active else f"round {self.receiver.round}"
        return PeerLostError(self.peer, f"lost {self.peer} in {where}: {why}")

    # --- control out ---

    def say(self, message: Message) -> None:
        """Queue a control message and send what the connection takes."""
        self._control_out += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what the sender, the receiver and `say` have queued."""
        for box in (self.sender.outbox, self.receiver.outbox):
            for message in box:
                self._control_out += encode(message)
            box.clear()
        if not self._control_out or self.closed:
            return
        try:
            sent = self.tcp.send(self._control_out)
            del self._control_out[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self.read_control()      # a peer that gave up said why before it closed
            raise self.lost(error.strerror or str(error)) from None

    @property
    def control_waiting(self) -> bool:
        """Control messages wait for room in the TCP socket."""
        return bool(self._control_out)

    def tick(self, time_: float) -> None:
        """What time alone brings: progress reports, and the end of patience.

        Raises:
            PeerLostError: no chunk delivered for `timeouts.stall`.
        """
        if time_ - self._reported >= self.config.progress_interval:
            self._reported = time_
            self.receiver.report()
        stall = self.config.timeouts.stall
        if self.sender.is_stalled(time_, stall) or self.receiver.is_stalled(time_, stall):
            raise self.lost(f"no chunk was delivered for {stall:g} s")

    def close(self) -> None:
        """Close both sockets."""
        self.tcp.close()
        self.udp.close()


class EventLoop:
    """Runs the channels of one process."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self._open: list[Channel] = []      # those whose peer has not said goodbye
        self._selector = selectors.DefaultSelector()

    def add(self, channel: Channel) -> None:
        """Serve this channel from now on."""
        self.channels.append(channel)
        self._open.append(channel)
        self._selector.register(channel.tcp, selectors.EVENT_READ, channel)
        self._selector.register(channel.udp, selectors.EVENT_READ, channel)
        channel.read_messages()      # what arrived together with the end of the handshake

    def run(self, until: Callable[[], bool], wake: int | None = None, poll: float = 1.0) -> None:
        """Send and receive until `until()` holds.

        Args:
            until: looked at after every event and every `poll` s.
            wake: a file descriptor that also makes it look.

        Raises:
            PeerLostError, RemoteProtocolError: of any channel; the caller tells the other peers.
        """
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ, None)
        try:
            while not until():
                self._turn(poll)
        finally:
            if wake is not None:
                self._selector.unregister(wake)

    def run_until_idle(self) -> None:
        """Run until nothing of ours is on its way: between rounds, what a peer has not read is of an old one."""
        self.run(lambda: not any(channel.outgoing() for channel in self.channels), poll=IDLE_POLL)

    def _turn(self, longest: float) -> None:
        wait = longest
        for channel in self._open:
            more = channel.pump()
            if more is not None:
                wait = min(wait, more)
            if not channel.receiver.done and channel.receiver.heard is not None:
                wait = min(wait, channel.config.progress_interval)
            self._watch(channel)
        for key, events in self._selector.select(wait):
            channel = key.data
            if channel is None:
                continue
            if key.fileobj is channel.udp:
                if events & selectors.EVENT_READ:
                    channel.read_frames()
                if events & selectors.EVENT_WRITE:
                    channel.blocked = False
            elif events & selectors.EVENT_READ:
                channel.read_control()
        time_ = now()
        for channel in self._open:
            channel.tick(time_)
            channel.flush()
            if channel.closed:      # its connection would announce its end for ever
                self._selector.unregister(channel.tcp)
                self._selector.unregister(channel.udp)
        self._open = [channel for channel in self._open if not channel.closed]

    def _watch(self, channel: Channel) -> None:
        """Ask for writability only of sockets that were full."""
        for sock, full in ((channel.udp, channel.blocked), (channel.tcp, channel.control_waiting)):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            if self._selector.get_key(sock).events != wanted:
                self._selector.modify(sock, wanted, channel)

    def close(self) -> None:
        """Close all channels."""
        self._selector.close()
        for channel in self.channels:
            channel.close()
