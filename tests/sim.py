"""A sender and a receiver joined by a seeded lossy pipe, in virtual time: no sockets, no clock, no waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from protocol.config import Polling, TransportConfig
from protocol.order import ORDERS
from protocol.receiver import Receiver
from protocol.sender import Sender
from protocol.tolerance import allowed_missing
from protocol.wire import FrameArray, model_frames

CONFIG = TransportConfig(mtu=576)      # chunks of 532 bytes
SESSION = 0x5E551011
STEPS = 200_000      # events after which a round that does not end counts as hung


@dataclass(frozen=True)
class Pipe:
    """What the data path does to frames; the control path is TCP: late, but whole and in order.

    Attributes:
        loss, duplicate: probability per frame.
        spread: a frame takes 1 to 1 + spread ticks, so frames overtake each other, their PROBE and rounds.
        batch: frames of one send.
        control: ticks of a control message.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    spread: float = 0.0
    batch: int = 4
    control: float = 1.0


@dataclass
class Outcome:
    """One round: what was sent, what the receiver gave out, and what both ends say of it."""

    sent: np.ndarray
    got: np.ndarray
    delivered: np.ndarray      # (chunks,) bool, the sender's
    missing: int               # the receiver's
    passes: int
    frames_sent: int
    early_stop: bool
    order: np.ndarray | None      # in which the chunks were to be sent


class Link:
    """Runs rounds over one pipe; what is on its way when a round ends arrives in the next."""

    def __init__(
        self, pipe: Pipe, size: int, seed: int, first_round: int = 0, polling: Polling | None = None,
        order: str = "sequential", agreed: bool = False, repair: bool = True,
    ) -> None:
        self.pipe, self.size = pipe, size
        self.random = np.random.default_rng(seed)
        self.frames: FrameArray = model_frames(4 * size, SESSION, CONFIG)
        self.sender = Sender(len(self.frames), polling)
        self.receiver = Receiver(4 * size, CONFIG.chunk_bytes, SESSION, repair)
        self.order, self.agreed = ORDERS[order](len(self.frames)), agreed
        self.round, self.now = first_round, 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0

    def run(self, tolerances: Iterable[float]) -> list[Outcome]:
        """One round per tolerance."""
        return [self._round(tolerance) for tolerance in tolerances]

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + delay, self._order, action))

    def _round(self, tolerance: float) -> Outcome:
        sent = self.random.standard_normal(self.size, np.float32)
        self.frames.load(sent)
        self.frames.words[:, 2] = self.round
        self.receiver.arm(self.round, tolerance)
        order = self.order(self.round, self.frames.values)
        if self.agreed:
            least = len(self.frames) - allowed_missing(tolerance, len(self.frames))
            order = np.arange(len(self.frames))[:least] if order is None else order[:least]
        self.sender.start(self.round, self.now, order)
        steps = 0
        while self.sender.active or not self.receiver.done:
            steps += 1
            assert steps < STEPS, "the round does not end"
            if self.sender.wait(self.now) == 0:
                self._send_batch()
            self._post()
            if (wait := self.sender.wait(self.now)) is not None:
                until = self.now + (wait or 1)      # one tick of sending, so news may arrive within a pass
            else:
                until = self._events[0][0] if self._events else self.now + 1
            while self._events and self._events[0][0] <= until:
                self.now, _, action = heapq.heappop(self._events)
                action()
                self._post()
            self.now = until
        self.round = (self.round + 1) % 2**32
        return Outcome(
            sent, self.receiver.gradient.view(np.float32).copy(), self.sender.delivered.copy(), self.receiver.missing,
            self.sender.passes, self.sender.frames_sent, self.sender.early_stop,
            None if order is None else order.copy(),
        )

    def _send_batch(self) -> None:
        chosen = np.arange(len(self.frames))[self.sender.peek(self.pipe.batch)]
        for row in chosen:
            frame = FrameArray(1, CONFIG.frame_bytes)
            frame.raw[0] = self.frames.raw[row]
            copies = 1 + (self.random.random() < self.pipe.duplicate)
            for _ in range(copies):
                if self.random.random() >= self.pipe.loss:
                    delay = 1 + self.pipe.spread * self.random.random()
                    self._later(delay, lambda f=frame: self.receiver.take(f.words, f.chunks, self.now))
        self.sender.advance(len(chosen), self.now)

    def _post(self) -> None:
        """Put what both ends want to say on the control path."""
        self.receiver.report()
        for box, handle in (
            (self.sender.outbox, self.receiver.probe),
            (self.receiver.outbox, lambda message: self.sender.handle(message, self.now)),
        ):
            for message in box:
                self._later(self.pipe.control, lambda m=message, h=handle: h(m))
            box.clear()
