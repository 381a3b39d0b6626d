"""Errors of the transport: whose fault it was, and why a single frame was dropped.

A malformed or foreign *frame* is never an exception, only a count under its `DropReason`: on a real network such
frames are normal. A malformed *control message* is one, since the control channel is reliable (TCP).
"""

from __future__ import annotations

from enum import Enum


class DblpError(Exception):
    """Base of every error that this package raises on purpose."""


class LocalProtocolError(DblpError):
    """This side was used wrongly: a bad argument, or a call in a state that does not allow it."""


class PortInUseError(LocalProtocolError):
    """A port that this side must bind is taken by another process."""


class RemoteProtocolError(DblpError):
    """The peer broke the protocol: wrong version, wrong secret, another model, a malformed control message."""


class PeerLostError(DblpError):
    """The control connection to a peer ended while it was still needed, or the peer made no progress in time.

    Attributes:
        peer: name of the peer, as it introduced itself.
    """

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(message)
        self.peer = peer


class DropReason(Enum):
    """Why a received frame was not taken. The value is the name used in results."""

    LENGTH = "length"          # not a whole frame, or its length field disagrees with the chunk size
    VERSION = "version"        # other protocol version, or unknown flags
    SESSION = "session"        # of another training job
    STALE = "stale"            # of another round (paper, section III-A)
    SEQUENCE = "sequence"      # chunk number out of range
    DUPLICATE = "duplicate"    # chunk already here
