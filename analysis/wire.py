"""What each round was, from captured packets alone.

Each frame of a channel passes two ports of the switch: where it enters, before the injector, and where it leaves,
behind injector and queue. The difference is what was lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.pcap import BITMAP, PROBE, ROUND, STOP, Channel, Frames, Point


@dataclass(frozen=True)
class WireRound:
    """One gradient over one channel as the wire shows it; None where the captures cannot tell.

    Attributes:
        iteration, worker, direction: as in the records.
        passes: passes begun: one more than the BITMAPs that asked for another.
        frames_sent: data frames at the port where they enter the switch.
        lost: those that did not come out at the other port.
        retransmissions: frames sent again.
        late: frames that came out after STOP had passed the other way: sent in vain.
        duplicate_frames: frames that came out again before STOP.
        frames_delivered, stale, duplicate: what STOP tells: different frames at the receiver; dropped by it.
        unseen: frames that STOP calls delivered, but that never came out of the switch.
        tolerance, in_clr: as ROUND told.
        early_stop: no PROBE ended the last pass.
        latency_s: from the first frame to STOP, at the sender's port.
        goodput_bps: bits of gradient delivered over that time.
    """

    iteration: int
    worker: str
    direction: str
    passes: int
    frames_sent: int
    lost: int | None
    retransmissions: int
    late: int | None
    duplicate_frames: int | None
    frames_delivered: int | None
    stale: int | None
    duplicate: int | None
    unseen: int | None
    tolerance: float | None
    in_clr: bool | None
    early_stop: bool
    latency_s: float | None
    goodput_bps: float | None


@dataclass(frozen=True)
class Link:
    """All packets of one worker in one direction: what entered the switch and did not come out."""

    worker: str
    direction: str
    frames_lost: int
    segments_lost: int
    injected: int | None = None


def _ends(channel: Channel, direction: str) -> tuple[Point, Point | None]:
    """Where frames of this direction enter the switch and where they leave it: they pass the entry first."""
    def first(point: Point) -> float:
        stamps = getattr(point, direction).time
        return stamps[0] if len(stamps) else math.inf

    entry, *others = sorted(channel.points, key=first)
    return entry, max(others, key=lambda point: len(getattr(point, direction).time), default=None)


def entry(channel: Channel, direction: str) -> Point:
    """Where frames of this direction enter the switches."""
    return _ends(channel, direction)[0]


def rounds(channel: Channel) -> Iterator[WireRound]:
    """The rounds of a channel, its reduces first."""
    for parity, direction in enumerate(("reduce", "broadcast")):
        came_in, exit_ = _ends(channel, direction)
        sent: Frames = getattr(came_in, direction)
        ours = sent.round % 2 == parity
        numbers, first, index = np.unique(sent.round[ours], return_index=True, return_inverse=True)
        counts = np.bincount(index, minlength=len(numbers))
        different = _different(index, sent.sequence[ours], len(numbers), channel.chunks)
        begins = sent.time[ours][first]
        said = _said(came_in, direction)
        told = {message.fields[0]: message for message in came_in.downward if message.type == ROUND}
        outcome = _arrivals(channel, exit_, direction, numbers) if exit_ else {}
        for at, number in enumerate(numbers.tolist()):
            bitmaps, stop, probed = said.get(number, (0, None, set()))
            passes = 1 + bitmaps
            arrived, late, again, unseen = outcome.get(number, (None, None, None, None))
            delivered = latency = goodput = None
            if stop is not None:
                bits = np.unpackbits(np.frombuffer(stop.bits, np.uint8), count=channel.chunks)
                delivered = int(bits.sum())
                latency = (stop.time - int(begins[at])) / 1e9
                payload = delivered * channel.chunk_bytes
                if bits[-1]:
                    payload -= channel.chunk_bytes - _last_length(sent, channel)
                goodput = 8 * payload / latency if latency > 0 else None
            announced = told.get(number)
            yield WireRound(
                iteration=number // 2, worker=channel.worker, direction=direction, passes=passes,
                frames_sent=int(counts[at]), lost=None if arrived is None else int(counts[at]) - arrived,
                retransmissions=int(counts[at] - different[at]), late=late, duplicate_frames=again,
                frames_delivered=delivered, stale=stop and stop.fields[1], duplicate=stop and stop.fields[2],
                unseen=unseen, tolerance=announced and announced.fields[1], in_clr=announced and announced.fields[2],
                early_stop=passes not in probed, latency_s=latency, goodput_bps=goodput,
            )


def _different(index: np.ndarray, sequence: np.ndarray, rounds: int, chunks: int) -> np.ndarray:
    """(rounds,) how many different chunks each round has."""
    return np.bincount(np.unique(index * (chunks + 1) + np.minimum(sequence, chunks)) // (chunks + 1), minlength=rounds)


def _last_length(sent: Frames, channel: Channel) -> int:
    lengths = sent.length[sent.sequence == channel.chunks - 1]
    return int(lengths[0]) if len(lengths) else channel.chunk_bytes


def _said(point: Point, direction: str) -> dict[int, tuple[int, Any, set[int]]]:
    """Per round: BITMAPs, STOP (or None), and the passes that a PROBE ended."""
    forth, back = (point.upward, point.downward) if direction == "reduce" else (point.downward, point.upward)
    rounds: dict[int, list[Any]] = {}
    for message in (*forth, *back):
        if message.type not in (PROBE, BITMAP, STOP):
            continue
        entry = rounds.setdefault(message.fields[0], [0, None, set()])
        if message.type == PROBE:
            entry[2].add(message.fields[1])
        elif message.type == BITMAP:
            entry[0] += 1
        else:
            entry[1] = message
    return {number: tuple(entry) for number, entry in rounds.items()}


def _arrivals(
    channel: Channel, point: Point, direction: str, numbers: np.ndarray
) -> dict[int, tuple[int, int | None, int | None, int | None]]:
    """Per round, at the port where frames leave: frames, late ones, repeated ones, and delivered ones never seen."""
    came: Frames = getattr(point, direction)
    said = _said(point, direction)
    result: dict[int, tuple[int, int | None, int | None, int | None]] = {}
    order = np.argsort(came.round, kind="stable")
    bounds = np.searchsorted(came.round[order], np.stack([numbers, numbers + 1]))
    for number, start, end in zip(numbers.tolist(), *bounds, strict=True):
        chosen = order[start:end]
        stop = said[number][1] if number in said else None
        if stop is None:
            result[number] = len(chosen), None, None, None
            continue
        in_time = came.sequence[chosen[came.time[chosen] <= stop.time]]
        in_time = in_time[in_time < channel.chunks]
        seen = np.zeros(channel.chunks, bool)
        seen[in_time] = True
        bits = np.unpackbits(np.frombuffer(stop.bits, np.uint8), count=channel.chunks).view(bool)
        result[number] = (
            len(chosen), int((came.time[chosen] > stop.time).sum()), len(in_time) - int(seen.sum()),
            int((bits & ~seen).sum()),
        )
    return result


def links(channel: Channel) -> Iterator[Link]:
    """Both directions of a channel, if two ports saw it."""
    for which, direction in enumerate(("reduce", "broadcast")):
        entry, exit_ = _ends(channel, direction)
        if exit_ is not None:
            frames_lost = len(getattr(entry, direction).time) - len(getattr(exit_, direction).time)
            yield Link(channel.worker, direction, frames_lost, entry.segments[which] - exit_.segments[which])
