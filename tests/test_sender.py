"""Algorithm 1 without sockets: passes, probes, early stop, and what of the control channel is dropped."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.config import Polling
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.sender import Sender
from protocol.wire import Bitmap, Probe, Progress, Stop, pack_bits


def bits(chunks: int, *missing: int) -> bytes:
    delivered = np.ones(chunks, bool)
    delivered[list(missing)] = False
    return pack_bits(delivered)


def started(chunks: int = 10, round_: int = 5) -> Sender:
    sender = Sender(chunks)
    sender.start(round_, 0.0)
    return sender


def send_pass(sender: Sender, limit: int = 4) -> list[int]:
    """The chunk numbers of one pass, as the endpoint would send them."""
    sent: list[int] = []
    while sender.sending:
        chosen = np.arange(sender.chunks)[sender.peek(limit)]
        assert 0 < len(chosen) <= limit
        sent += chosen.tolist()
        sender.advance(len(chosen), 0.0)
    return sent


def test_a_pass_sends_all_then_probes_then_only_what_is_missing() -> None:
    sender = started()
    assert send_pass(sender) == list(range(10))
    assert sender.outbox == [Probe(5, 1)]
    sender.outbox.clear()
    assert sender.handle(Bitmap(5, 1, bits(10, 2, 3, 9)), 1.0) == (10, 7)
    assert send_pass(sender) == [2, 3, 9]
    assert sender.outbox == [Probe(5, 2)]
    assert sender.handle(Bitmap(5, 2, bits(10, 9)), 2.0) == (3, 2)
    assert send_pass(sender) == [9]
    sender.handle(Stop(5, 4, 1, bits(10)), 3.5)
    assert not sender.active
    assert (sender.passes, sender.frames_sent, sender.stale, sender.duplicate) == (3, 14, 4, 1)
    assert (sender.started, sender.finished, sender.early_stop) == (0.0, 3.5, False)
    assert sender.delivered.all()


def test_contiguous_chunks_come_as_a_slice() -> None:
    sender = started()
    assert sender.peek(4) == slice(0, 4)
    sender.advance(4, 0.0)
    assert sender.peek(100) == slice(4, 10)


def test_a_partial_send_repeats_nothing() -> None:
    sender = started(5)
    sender.peek(4)
    sender.advance(2, 0.0)      # the socket took two of the four
    assert sender.peek(4) == slice(2, 5)


def test_early_stop_ends_a_pass_at_once_and_reports_what_was_delivered() -> None:
    sender = started()
    sender.advance(7, 0.0)
    sender.handle(Stop(5, 0, 0, bits(10, 7, 8, 9)), 1.0)
    assert (sender.active, sender.sending, sender.early_stop) == (False, False, True)
    assert sender.outbox == []
    assert sender.delivered.tolist() == [True] * 7 + [False] * 3
    assert sender.frames_sent == 7


def test_a_stop_recalls_a_probe_that_has_not_left() -> None:
    sender = started()
    send_pass(sender)
    sender.handle(Stop(5, 0, 0, bits(10, 1)), 1.0)
    assert sender.outbox == []


@pytest.mark.parametrize(
    "message",
    [
        Stop(4, 0, 0, bits(10)), Stop(6, 0, 0, bits(10)), Stop(2**32 - 1, 0, 0, bits(10)),
        Bitmap(4, 1, bits(10, 0)), Bitmap(5, 2, bits(10, 0)), Bitmap(5, 0, bits(10, 0)),
        Progress(4, 1, 10, 9), Progress(5, 2, 10, 9),
    ],
    ids=repr,
)
def test_messages_of_other_rounds_and_passes_change_nothing(message: Bitmap | Progress | Stop) -> None:
    sender = started()
    send_pass(sender)
    assert sender.handle(message, 1.0) is None
    assert sender.active
    assert not sender.sending
    assert (sender.passes, sender.heard) == (1, 0.0)


def test_an_idle_sender_hears_nothing() -> None:
    sender = Sender(10)
    assert sender.handle(Stop(0, 0, 0, bits(10)), 1.0) is None
    assert not sender.delivered.any()


def test_a_bitmap_before_its_probe_is_dropped() -> None:
    sender = started()
    sender.advance(4, 0.0)
    assert sender.handle(Bitmap(5, 1, bits(10, 0)), 1.0) is None
    assert sender.peek(4) == slice(4, 8)


@pytest.mark.parametrize("message", [Bitmap(5, 1, b"\xff"), Stop(5, 0, 0, b"\xff" * 3)])
def test_a_bitmap_of_another_model_is_an_error(message: Bitmap | Stop) -> None:
    sender = started()
    send_pass(sender)
    with pytest.raises(RemoteProtocolError, match="for 10 chunks"):
        sender.handle(message, 1.0)


def test_a_receiver_that_has_all_but_does_not_stop_is_asked_again() -> None:
    # Its tolerance, over TCP, has not reached it yet.
    sender = started()
    send_pass(sender)
    sender.outbox.clear()
    sender.handle(Bitmap(5, 1, bits(10)), 1.0)
    assert not sender.sending
    assert sender.outbox == [Probe(5, 2)]
    assert sender.frames_sent == 10


def test_progress_counts_only_what_the_receiver_has_seen() -> None:
    sender = started(100)
    sender.advance(80, 0.0)
    # Chunk 49 is the last that arrived; the 30 after it are on their way, not lost.
    assert sender.handle(Progress(5, 1, 40, 49), 1.0) == (50, 40)
    send_pass(sender)
    missing = range(0, 100, 2)
    assert sender.handle(Bitmap(5, 1, bits(100, *missing)), 2.0) == (100, 50)
    sender.advance(30, 0.0)
    # Pass 2: chunk 38 is the 20th of the queue; 50 were here before.
    assert sender.handle(Progress(5, 2, 65, 38), 3.0) == (20, 15)
    # A straggler of pass 1 beyond what pass 2 has sent tells nothing of pass 2.
    assert sender.handle(Progress(5, 2, 66, 98), 3.0) is None


def test_stalled_means_no_newly_delivered_chunk() -> None:
    sender = started()
    assert not sender.is_stalled(60.0, 60.0)
    assert sender.is_stalled(60.1, 60.0)
    sender.advance(4, 0.0)
    sender.handle(Progress(5, 1, 2, 3), 50.0)
    sender.handle(Progress(5, 1, 2, 3), 100.0)      # nothing new
    assert not sender.is_stalled(110.0, 60.0)
    assert sender.is_stalled(110.1, 60.0)
    sender.handle(Stop(5, 0, 0, bits(10)), 120.0)
    assert not sender.is_stalled(1000.0, 60.0)


def test_a_new_round_starts_afresh() -> None:
    sender = started(round_=2**32 - 1)
    send_pass(sender)
    sender.handle(Bitmap(2**32 - 1, 1, bits(10, 3)), 1.0)
    sender.handle(Stop(2**32 - 1, 9, 9, bits(10, 3)), 2.0)
    sender.start(0, 3.0)
    assert (sender.passes, sender.frames_sent, sender.stale, sender.early_stop) == (1, 0, 0, False)
    assert sender.peek(100) == slice(0, 10)
    sender.handle(Stop(2**32 - 1, 0, 0, bits(10)), 4.0)
    assert sender.active


# --- orders ---


def test_passes_keep_the_order_and_repair_what_is_missing_in_it() -> None:
    sender = Sender(10)
    sender.start(5, 0.0, np.array([9, 1, 8, 2, 7, 3, 6, 4, 5, 0]))
    assert send_pass(sender) == [9, 1, 8, 2, 7, 3, 6, 4, 5, 0]
    assert sender.handle(Bitmap(5, 1, bits(10, 0, 2, 9)), 1.0) == (10, 7)
    assert send_pass(sender) == [9, 2, 0]
    # Of pass 2 the receiver has seen up to chunk 2, the second of three; seven were here before.
    assert sender.handle(Progress(5, 2, 8, 2), 1.0) == (2, 1)


def test_chunks_that_are_left_out_are_not_repaired() -> None:
    sender = Sender(10)
    sender.start(5, 0.0, np.array([4, 2, 9, 6]))
    assert send_pass(sender, limit=3) == [4, 2, 9, 6]
    assert sender.handle(Bitmap(5, 1, bits(10, 0, 1, 2, 3, 5, 7, 8, 9)), 1.0) == (4, 2)
    assert send_pass(sender) == [2, 9]
    sender.handle(Stop(5, 0, 0, bits(10, 0, 1, 3, 5, 7, 8)), 2.0)
    assert (sender.passes, sender.frames_sent, int(sender.delivered.sum())) == (2, 6, 4)


def test_progress_is_read_in_the_order_of_the_pass() -> None:
    order = np.arange(100)[::-1]
    sender = Sender(100)
    sender.start(5, 0.0, order)
    sender.advance(80, 0.0)
    # Chunk 50 is the 50th from the end.
    assert sender.handle(Progress(5, 1, 40, 50), 1.0) == (50, 40)
    assert sender.handle(Progress(5, 1, 40, 5), 1.0) is None      # not sent yet
    assert sender.handle(Progress(5, 1, 40, 2**32 - 1), 1.0) is None
    send_pass(sender)
    sender.handle(Bitmap(5, 1, bits(100, *range(0, 100, 2))), 2.0)
    assert send_pass(sender, limit=44)[:3] == [98, 96, 94]


def test_a_round_without_an_order_follows_one_with() -> None:
    sender = Sender(10)
    sender.start(5, 0.0, np.array([3, 1]))
    sender.handle(Stop(5, 0, 0, bits(10)), 1.0)
    sender.start(7, 2.0)
    assert sender.peek(100) == slice(0, 10)


# --- polling ---


def walk(sender: Sender, now: float, step: float) -> tuple[list[tuple[float, list[int]]], float]:
    """Send until the pass ends, in steps of time: when which chunks went, and when the PROBE did."""
    sent = []
    while (wait := sender.wait(now)) is not None:
        if wait:
            now += min(wait, step)
            continue
        chosen = np.arange(sender.chunks)[sender.peek(3)].tolist()
        sent.append((now, chosen))
        sender.advance(len(chosen), now)
    return sent, now


def polled(chunks: int, every: int = 4, wait: float = 0.5) -> Sender:
    sender = Sender(chunks, Polling(every, wait))
    sender.start(5, 0.0)
    return sender


@pytest.mark.parametrize("step", [0.125, 1.0])
def test_a_polling_sender_waits_after_each_stretch_of_every_pass(step: float) -> None:
    sender = polled(10)
    assert walk(sender, 0.0, step) == ([(0.0, [0, 1, 2]), (0.0, [3]), (0.5, [4, 5, 6]), (0.5, [7]), (1.0, [8, 9])], 1.5)
    assert sender.outbox == [Probe(5, 1)]
    # Stretches with nothing to send are walked, too.
    sender.handle(Bitmap(5, 1, bits(10, 9)), 2.0)
    assert walk(sender, 2.0, step) == ([(3.0, [9])], 3.5)
    sender.handle(Bitmap(5, 2, bits(10, 0, 5)), 4.0)
    assert walk(sender, 4.0, step) == ([(4.0, [0]), (4.5, [5])], 5.5)
    sender.handle(Bitmap(5, 3, bits(10)), 6.0)      # all is there, but not its tolerance
    assert walk(sender, 6.0, step) == ([], 7.5)
    assert sender.outbox == [Probe(5, pass_) for pass_ in (1, 2, 3, 4)]


def test_a_stop_ends_a_poll() -> None:
    sender = polled(10)
    sender.advance(3, 0.0)
    sender.advance(1, 0.0)
    assert sender.wait(0.2) == pytest.approx(0.3)
    sender.handle(Stop(5, 0, 0, bits(10, *range(4, 10))), 0.2)
    assert sender.wait(0.2) is None
    assert (sender.early_stop, sender.outbox) == (True, [])


def test_a_pass_of_an_eleven_thousand_chunk_model_costs_what_its_polls_do() -> None:
    sender = polled(11_046, every=100, wait=2**-10)
    for pass_ in range(1, 4):
        begin = 10.0 * pass_
        if pass_ > 1:
            sender.handle(Bitmap(5, pass_ - 1, bits(11_046, 7000)), begin)
        assert walk(sender, begin, 1.0)[1] - begin == 111 * 2**-10


@pytest.mark.parametrize("wrong", [(0, 0.001), (100, -1.0)])
def test_polling_that_makes_no_sense_is_refused(wrong: tuple[int, float]) -> None:
    with pytest.raises(LocalProtocolError, match="polling every"):
        Polling(*wrong)
