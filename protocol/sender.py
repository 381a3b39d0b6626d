"""Algorithm 1 as a state machine without sockets or a clock.

    idle --start--> sending --last frame of the pass sent--> probing --BITMAP--> sending (the missing chunks)
    sending or probing --STOP--> idle

The endpoint asks `wait` whether it may send, `peek` what, sends it, and says so with `advance`; it delivers control
messages to `handle` and takes those to send from `outbox`.

With `polling`, a pass is a walk over all chunks of the round, sent or not, in stretches of `polling.every`; after each
the sender looks at its control channel for `polling.wait` s and sends nothing meanwhile. Without, it is one stretch.
"""

from __future__ import annotations

import numpy as np

from protocol.config import Polling
from protocol.wire import Bitmap, Probe, Progress, Stop, unpack_bits


class Sender:
    """Sends one gradient of `chunks` chunks per round, repairing per pass (the paper's repair).

    Args:
        chunks: chunks of a gradient.
        polling: what each pass costs beyond its frames; default: nothing.

    Attributes:
        active: a round is under way.
        outbox: control messages for the receiver, oldest first; the endpoint empties it.
        round: the current or last round.
        passes: passes begun in it.
        frames_sent: frames handed to the network in it.
        delivered: (chunks,) bool, what the receiver had when it stopped the round.
        early_stop: STOP came before the end of a pass (paper, section IV-B).
        stale, duplicate: frames the receiver dropped as such, as its STOP told.
        started, finished, heard: `now` of the start, of the STOP, and of the last news of delivery.
    """

    def __init__(self, chunks: int, polling: Polling | None = None) -> None:
        self.chunks = chunks
        self.active = False
        self.outbox: list[Probe] = []
        self.round = 0
        self.delivered = np.zeros(chunks, bool)
        self._stretch, self._pause = (polling.every, polling.wait) if polling else (chunks, 0.0)
        self._all = np.arange(chunks)
        self._order: np.ndarray | None = None
        self._place = np.zeros(chunks, np.intp)      # of each chunk in the order, where there is one
        # What is left of a pass, as ascending places in the order: for the default order, chunk numbers.
        self._queue: np.ndarray = self._all
        self._first: np.ndarray = self._all
        self._position = 0
        self._probing = False
        self._best = 0

    def start(self, round_: int, now: float, order: np.ndarray | None = None) -> None:
        """Begin a round with a first pass.

        Args:
            round_: its number.
            now: s.
            order: numbers of the chunks to send, in this order in every pass; must stay as it is until the round ends.
                Default: all, ascending. The round can only end if no more are left out than the tolerance allows.
        """
        self.round, self.active, self.started = round_, True, now
        self.passes, self.frames_sent, self.early_stop = 0, 0, False
        self.stale = self.duplicate = 0
        self.finished = None
        self.heard = now
        self._best = 0
        self._order = order
        if order is not None:
            self._place[order] = self._all[: len(order)]
        self._first = self._all if order is None else self._all[: len(order)]
        self._begin_pass(self._first, now)

    @property
    def sending(self) -> bool:
        """A pass is under way."""
        return self.active and not self._probing

    def wait(self, now: float) -> float | None:
        """s until there is something to send: 0 where there is, more while polling; None between passes and rounds."""
        if self.sending:
            self._walk(now)
        if not self.sending:
            return None
        return 0.0 if self._position < self._until else self._resume - now

    def peek(self, limit: int) -> np.ndarray | slice:
        """The next chunks to send, at most `limit`: a slice where they are contiguous, else their numbers."""
        until = min(self._position + limit, self._until)
        if self._order is not None:
            return self._order[self._queue[self._position : until]]
        if self._queue is self._all:
            return slice(self._position, until)
        return self._queue[self._position : until]

    def advance(self, count: int, now: float) -> None:
        """`count` frames of the last `peek` went out; the end of a pass puts a PROBE into the outbox."""
        self._position += count
        self.frames_sent += count
        if self._position == self._until:
            self._resume = now + self._pause
            self._walk(now)

    def handle(self, message: Bitmap | Progress | Stop, now: float) -> tuple[int, int] | None:
        """Take a control message of the receiver; one of another round or pass is dropped, whatever its kind.

        Returns:
            (sent, delivered) of the current pass up to the last chunk that the receiver has seen, where the message
            tells it: what pacing estimates the loss from. Frames still on their way do not count as lost.

        Raises:
            RemoteProtocolError: the bitmap is not of this model.
        """
        if not self.active or message.round != self.round:
            return None
        if isinstance(message, Stop):
            self.delivered = unpack_bits(message.bits, self.chunks)
            self.stale, self.duplicate = message.stale, message.duplicate
            self.early_stop = not self._probing
            self.active, self.finished = False, now
            self.outbox.clear()
            return None
        if message.pass_ != self.passes:
            return None
        if isinstance(message, Progress):
            before = len(self._first) - len(self._queue)      # delivered in earlier passes
            self._news(message.delivered, now)
            place = message.sequence
            if self._order is not None:
                place = self._place[place] if place < self.chunks else self.chunks
            seen = int(np.searchsorted(self._queue, place, side="right"))
            return (seen, message.delivered - before) if seen <= self._position else None
        if not self._probing:
            return None
        delivered = unpack_bits(message.bits, self.chunks)
        missing = np.flatnonzero(~(delivered if self._order is None else delivered[self._order]))
        sent, lost = len(self._queue), len(missing)
        self._news(len(self._first) - lost, now)
        # A receiver with everything sends STOP; if one does not, the empty pass asks again rather than hang.
        self._begin_pass(missing, now)
        return sent, sent - lost

    def is_stalled(self, now: float, timeout: float) -> bool:
        """No newly delivered chunk for `timeout` s of a round under way."""
        return self.active and now - self.heard > timeout

    def _begin_pass(self, queue: np.ndarray, now: float) -> None:
        self._queue, self._position, self._probing = queue, 0, False
        self.passes += 1
        self._walked, self._until = 0, 0      # the end of the stretch: in the order, and in the queue
        self._resume = now
        self._walk(now)

    def _walk(self, now: float) -> None:
        """Go past polls that are over: to the next chunk of the queue, or to the end of the pass."""
        while self._position == self._until and self._resume <= now:
            if self._walked >= len(self._first):
                self._probing = True
                self.outbox.append(Probe(self.round, self.passes))
                return
            self._walked += self._stretch
            self._until = int(np.searchsorted(self._queue, self._walked))
            if self._position == self._until:      # a stretch with nothing to send is polled all the same
                self._resume = now + self._pause

    def _news(self, delivered: int, now: float) -> None:
        if delivered > self._best:
            self._best, self.heard = delivered, now
