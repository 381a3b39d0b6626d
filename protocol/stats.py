"""What one round cost, as the sender saw it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.sender import Sender


@dataclass(frozen=True)
class RoundStats:
    """One gradient over one channel.

    Attributes:
        peer: the worker's name; in its own records, too.
        direction: `reduce` (worker to server) or `broadcast` (server to worker).
        round: round number on the wire.
        latency_s: from the first frame to the STOP, in s (the paper's send latency, section V-B).
        passes: passes over the chunks, the first included.
        frames_total, frames_sent, frames_delivered: frames of the model; handed to the network; at the receiver.
        stale, duplicate: frames that the receiver dropped as such during the round.
        tolerance, in_clr: in force for the round.
        early_stop: STOP came before a pass had ended.
    """

    peer: str
    direction: str
    round: int
    latency_s: float
    passes: int
    frames_total: int
    frames_sent: int
    frames_delivered: int
    stale: int
    duplicate: int
    tolerance: float
    in_clr: bool
    early_stop: bool


def round_stats(sender: Sender, peer: str, direction: str, tolerance: float, in_clr: bool) -> RoundStats:
    """The record of `sender`'s finished round."""
    return RoundStats(
        peer=peer, direction=direction, round=sender.round, latency_s=sender.finished - sender.started,
        passes=sender.passes, frames_total=sender.chunks, frames_sent=sender.frames_sent,
        frames_delivered=int(sender.delivered.sum()), stale=sender.stale, duplicate=sender.duplicate,
        tolerance=tolerance, in_clr=in_clr, early_stop=sender.early_stop,
    )
