"""Frames off a UDP socket, many a call.

Two mechanisms of Linux add up. UDP_GRO (udp(7)) hands over consecutive datagrams of one sender as one message, but only
where their IP identifications follow each other: behind a lossy link the gaps break it, and a message carries 1 /
loss frames on average. recvmmsg(2) takes whatever messages have piled up in one system call. Without the latter (it
is not POSIX), the same code takes one message a call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket

import numpy as np

from protocol.wire import FrameArray

UDP_GRO = 104            # linux/udp.h
MESSAGES = 32            # that one call may return
_MESSAGE_BYTES = 65536   # no UDP message is longer
_CONTROL_BYTES = 64


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _MessageHeader(ctypes.Structure):
    """struct msghdr of recvmsg(2)."""

    _fields_ = [
        ("name", ctypes.c_void_p), ("name_length", ctypes.c_uint), ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class _Message(ctypes.Structure):
    """struct mmsghdr of recvmmsg(2)."""

    _fields_ = [("header", _MessageHeader), ("length", ctypes.c_uint)]


# The fields that change with every call, as columns over all messages.
_COLUMNS = np.dtype({
    "names": ["control_length", "length"],
    "formats": [np.uintp, np.uint32],
    "offsets": [_Message.header.offset + _MessageHeader.control_length.offset, _Message.length.offset],
    "itemsize": ctypes.sizeof(_Message),
})


class Inbox:
    """Reads frames of one size from a non-blocking UDP socket.

    Args:
        sock: the socket.
        frame_bytes: size of a frame.

    Attributes:
        malformed: datagrams of another size, since the beginning.
    """

    def __init__(self, sock: socket.socket, frame_bytes: int) -> None:
        self._sock, self._frame_bytes = sock, frame_bytes
        self._receive = getattr(ctypes.CDLL(None, use_errno=True), "recvmmsg", None)
        rows = MESSAGES if self._receive else 1
        per_row = -(-_MESSAGE_BYTES // frame_bytes)
        self._frames = FrameArray(rows * per_row, frame_bytes)
        self._first = np.arange(rows) * per_row      # where each message's frames begin
        self._control = np.zeros((rows, _CONTROL_BYTES), np.uint8)
        start = socket.CMSG_LEN(0)
        self._segment = self._control[:, start : start + 4].view(np.int32)[:, 0]
        self._vectors = (_Vector * rows)()
        self._messages = (_Message * rows)()
        for row, (vector, message) in enumerate(zip(self._vectors, self._messages, strict=True)):
            vector.base = self._frames.raw[self._first[row]].ctypes.data
            vector.length = per_row * frame_bytes
            message.header.vectors = ctypes.addressof(vector)
            message.header.vector_count = 1
            message.header.control = self._control[row].ctypes.data
        self._columns = np.frombuffer(self._messages, _COLUMNS)
        self.malformed = 0

    def read(self) -> tuple[np.ndarray, np.ndarray] | None:
        """What one call returns, in the order of arrival.

        Returns:
            (k, 4) header words and (k, chunk_bytes) chunks, good until the next call; k may be 0 (malformed
            datagrams, an ICMP error). None where nothing waits.
        """
        count = self._call()
        if count is None:
            return None
        lengths = self._columns["length"][:count].astype(np.intp)
        grouped = self._columns["control_length"][:count] > 0
        segments = np.where(grouped, self._segment[:count], lengths)
        frames = np.where(segments == self._frame_bytes, lengths // self._frame_bytes, 0)
        rest = lengths - frames * self._frame_bytes
        if rest.any():
            self.malformed += int(np.sum(-(-rest // np.maximum(segments, 1))))
        if count == 1:
            rows: slice | np.ndarray = slice(0, int(frames[0]))
        else:
            ends = np.cumsum(frames)
            rows = np.repeat(self._first[:count] - (ends - frames), frames) + np.arange(ends[-1] if count else 0)
        return self._frames.words[rows], self._frames.chunks[rows]

    def _call(self) -> int | None:
        """Messages received; None for none."""
        self._columns["control_length"] = _CONTROL_BYTES
        if self._receive is None:
            return self._call_one()
        count = self._receive(self._sock.fileno(), self._messages, len(self._messages), socket.MSG_DONTWAIT, None)
        if count >= 0:
            return count
        return self._excuse(ctypes.get_errno())

    def _call_one(self) -> int | None:
        try:
            length, ancillary, _, _ = self._sock.recvmsg_into([self._frames.bytes], _CONTROL_BYTES)
        except OSError as error:
            return self._excuse(error.errno)
        self._columns["length"] = length
        self._columns["control_length"] = 0
        for level, kind, data in ancillary:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                self._columns["control_length"] = _CONTROL_BYTES
                self._segment[0] = int.from_bytes(data[:4], "little")
        return 1

    @staticmethod
    def _excuse(number: int | None) -> int | None:
        if number in (errno.EAGAIN, errno.EWOULDBLOCK):
            return None
        # ECONNREFUSED: ICMP says the peer's UDP socket is gone; its control connection tells more. EINTR: a signal.
        if number in (errno.ECONNREFUSED, errno.EINTR):
            return 0
        raise OSError(number, os.strerror(number))
