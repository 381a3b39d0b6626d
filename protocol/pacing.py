"""How fast a sender may send: a credit in frames that fills at a rate, and for `share` the rate itself.

`share`: the server grants each sender a part of the link that they share, its own or a narrower one on the way. It
aims at that rate *delivered*, not sent: where frames are lost on the way at random (a burst upstream of the shared
link), it sends faster to make up for them, at most as fast as its own link. Where sending more does not deliver more,
the loss is its own queue overflowing; it falls back to its share until the round ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.config import TransportConfig

# Credit that may pile up while the sender is not scheduled or the socket is full, in s at the current rate. Long enough
# for an ordinary scheduling delay on a busy host, short enough for N senders to catch up within a switch queue.
CREDIT_SECONDS = 0.010
# Loss below this is not made up for: it is what senders that fill a link exactly do to each other.
DEADBAND = 0.03
# Frames that a loss estimate rests on, and the verdict on a boost.
WINDOW_FRAMES = 128
VERDICT_FRAMES = 512
# A rate raised by more than this factor must show that it delivers more.
BOOST = 1.2


class Pacer:
    """Credit for one sender.

    Args:
        config: pacing mode, rates, and the bytes of a frame on the wire.
        share: bit/s granted by the server, or None.
        batch: frames of one send call; the credit holds at least two of them.
    """

    def __init__(self, config: TransportConfig, share: float | None, batch: int) -> None:
        bits = 8 * config.wire_bytes
        self._adaptive = config.pacing == "share" and share is not None
        base = {"none": None, "fixed": config.fixed_rate, "share": share}[config.pacing]
        self._base = math.inf if base is None else base / bits        # frames/s
        self._ceiling = max(self._base, config.link_rate / bits if config.link_rate else math.inf)
        self._batch = batch
        self.start(0.0)

    def start(self, now: float) -> None:
        """A round begins: the rate is the base rate, the credit one batch."""
        self.rate = self._base
        self._credit, self._filled = float(self._batch), now
        self._mark = (0, 0)      # (sent, delivered) of the pass where the loss window began
        self._boost: _Boost | None = None
        self._congested = False

    def allowance(self, now: float) -> int:
        """Frames that may be sent now."""
        if math.isinf(self.rate):
            return self._batch
        cap = max(2 * self._batch, self.rate * CREDIT_SECONDS)
        self._credit = min(cap, self._credit + (now - self._filled) * self.rate)
        self._filled = now
        return int(self._credit)

    def spend(self, frames: int) -> None:
        """`frames` frames went out."""
        self._credit -= frames

    def wait(self, frames: int) -> float:
        """s until the credit reaches `frames`, as of the last `allowance`."""
        return 0.0 if math.isinf(self.rate) else max(0.0, (frames - self._credit) / self.rate)

    def observe(self, sent: int, delivered: int) -> None:
        """Adapt to what the receiver tells of the pass under way: `delivered` of the first `sent` frames arrived.

        Only counts decide, never the time at which they come: a host that is slow to report looks like no loss at all.
        """
        if not self._adaptive or self._congested:
            return
        if sent < self._mark[0]:       # a new pass counts from zero
            self._mark = (sent, delivered)
        frames, arrived = sent - self._mark[0], delivered - self._mark[1]
        if frames < WINDOW_FRAMES:
            return
        self._mark = (sent, delivered)
        if self._boost is not None:
            self._boost.frames += frames
            self._boost.arrived += arrived
            if self._boost.frames >= VERDICT_FRAMES:
                if self._boost.in_vain():
                    self.rate, self._congested = self._base, True
                    return
                self._boost = None
        yield_ = max(arrived / frames, 1e-3)
        wanted = self._base if yield_ > 1 - DEADBAND else min(self._base / yield_, self._ceiling)
        if wanted > BOOST * self.rate and self._boost is None:
            self._boost = _Boost(wanted / self.rate, yield_)
        self.rate = wanted


@dataclass
class _Boost:
    """A raised rate on trial.

    Attributes:
        factor: by which the rate was raised.
        before: share of the frames that arrived before.
        frames, arrived: counts since.
    """

    factor: float
    before: float
    frames: int = 0
    arrived: int = 0

    def in_vain(self) -> bool:
        """Whether the loss grew with the rate.

        Loss at random leaves the share that arrives as it was; a full queue passes no more than before, so the share
        falls by the factor. The verdict lies in the middle.
        """
        return self.arrived / self.frames < self.before * (1 + 1 / self.factor) / 2
