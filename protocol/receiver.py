"""Algorithm 2 as a state machine without sockets or a clock.

    idle --arm--> receiving --missing <= floor(p * n)--> done (STOP in the outbox, missing chunks zeroed)

The endpoint delivers frames in batches to `take` and PROBEs to `probe`, after it has drained its socket: else the
bitmap reports as missing what lies in its own buffer.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from protocol.errors import DropReason
from protocol.tolerance import allowed_missing
from protocol.wire import VERSION, Bitmap, Probe, Progress, Stop, first_word, pack_bits


class Receiver:
    """Receives one gradient of `size_bytes` bytes per round into `gradient`.

    Args:
        size_bytes: bytes of the flat gradient.
        chunk_bytes: payload bytes of a frame.
        session: frames of other sessions are dropped.

    Attributes:
        gradient: (size_bytes,) uint8, what arrived; missing chunks are zero once `done`.
        arrived: (chunks,) bool, which chunks are here.
        done: the round has ended.
        dropped: frames not taken, by `DropReason`, since the beginning.
        outbox: control messages for the sender, oldest first.
    """

    def __init__(self, size_bytes: int, chunk_bytes: int, session: int) -> None:
        self.chunks = -(-size_bytes // chunk_bytes)
        self._store = np.zeros((self.chunks, chunk_bytes), np.uint8)
        self.gradient = self._store.reshape(-1)[:size_bytes]
        self.arrived = np.zeros(self.chunks, bool)
        self._row = np.zeros(self.chunks, np.intp)      # of each chunk in the batch being taken
        self._header = np.zeros(3, ">u4")
        self._header[:2] = first_word(chunk_bytes), session
        self._last_word = first_word(size_bytes - (self.chunks - 1) * chunk_bytes)
        self.outbox: list[Bitmap | Progress | Stop] = []
        self.dropped: Counter[DropReason] = Counter()
        self._told: Counter[DropReason] = Counter()     # of these, what STOPs have told
        self.done = True
        self.round = 0
        self.delivered = 0
        self.tolerance: float | None = None
        self.heard: float | None = None

    def arm(self, round_: int, tolerance: float | None = None) -> None:
        """Begin a round. With no tolerance yet, frames are taken but the round cannot end until `set_tolerance`."""
        self.round, self.done, self.delivered = round_, False, 0
        self.arrived[:] = False
        self._header[2] = round_
        self._pass, self._sequence, self._reported = 1, 0, 0
        self.heard = None
        self.tolerance = tolerance
        self._allowed = -1 if tolerance is None else allowed_missing(tolerance, self.chunks)

    def set_tolerance(self, round_: int, tolerance: float) -> None:
        """The tolerance in force for `round_`, if that is the round being received."""
        if round_ == self.round and not self.done:
            self.tolerance, self._allowed = tolerance, allowed_missing(tolerance, self.chunks)
            self._stop_if_enough()

    @property
    def missing(self) -> int:
        """Chunks of the round that have not arrived."""
        return self.chunks - self.delivered

    def take(self, words: np.ndarray, chunks: np.ndarray, now: float) -> None:
        """Take a batch of frames of one size.

        Args:
            words: (k, 4) big-endian uint32 header words.
            chunks: (k, chunk_bytes) uint8.
            now: s, only compared with other values of `now`.
        """
        sequence = words[:, 3].astype(np.intp)
        if self.done or sequence.max(initial=0) >= self.chunks - 1 or not (words[:, :3] == self._header).all():
            valid = self._valid(words)      # the last chunk has a length of its own, so it is looked at closely, too
            sequence, chunks = sequence[valid], chunks[valid]
        if not len(sequence):
            return
        self._sequence = int(sequence[-1])
        fresh = ~self.arrived[sequence]
        if not fresh.all():
            self.dropped[DropReason.DUPLICATE] += len(fresh) - int(fresh.sum())
            sequence, chunks = sequence[fresh], chunks[fresh]
        if not (sequence[1:] > sequence[:-1]).all():     # maybe twice within the batch
            rows = np.arange(len(sequence))
            self._row[sequence] = rows
            last = self._row[sequence] == rows
            if not last.all():
                self.dropped[DropReason.DUPLICATE] += len(last) - int(last.sum())
                sequence, chunks = sequence[last], chunks[last]
        if not len(sequence):
            return
        self._store[sequence] = chunks
        self.arrived[sequence] = True
        self.delivered += len(sequence)
        self.heard = now
        self._stop_if_enough()

    def probe(self, probe: Probe) -> None:
        """Answer the end of a pass with a BITMAP; of another round, or after STOP, it is a late one and dropped."""
        if self.done or probe.round != self.round:
            return
        self.outbox.append(Bitmap(self.round, probe.pass_, pack_bits(self.arrived)))
        self._pass = probe.pass_ + 1
        self._reported = self.delivered

    def report(self) -> None:
        """Put a PROGRESS into the outbox if chunks have arrived since the last."""
        if not self.done and self.delivered > self._reported:
            self._reported = self.delivered
            self.outbox.append(Progress(self.round, self._pass, self.delivered, self._sequence))

    def is_stalled(self, now: float, timeout: float) -> bool:
        """Chunks have arrived in this round, but none for `timeout` s."""
        return not self.done and self.heard is not None and now - self.heard > timeout

    def _stop_if_enough(self) -> None:
        if self.missing > self._allowed:
            return
        self._store[~self.arrived] = 0
        self.done = True
        news = self.dropped - self._told
        self._told = self.dropped.copy()
        self.outbox.append(
            Stop(self.round, news[DropReason.STALE], news[DropReason.DUPLICATE], pack_bits(self.arrived))
        )

    def _valid(self, words: np.ndarray) -> np.ndarray:
        """(k,) bool: frames of this round; the others are counted, each under the first reason that holds."""
        first = words[:, 0]
        last = words[:, 3] == self.chunks - 1
        good_length = np.where(last, first == self._last_word, first == self._header[0])
        version = (first >> 16) == VERSION << 8
        undecided = np.ones(len(words), bool)
        for reason, holds in (
            (DropReason.VERSION, ~version),
            (DropReason.SESSION, words[:, 1] != self._header[1]),
            (DropReason.STALE, (words[:, 2] != self._header[2]) | self.done),
            (DropReason.SEQUENCE, words[:, 3] >= self.chunks),
            (DropReason.LENGTH, ~good_length),
        ):
            hits = undecided & holds
            self.dropped[reason] += int(hits.sum())
            undecided &= ~hits
        return undecided
