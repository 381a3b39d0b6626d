"""Credit and the share that is held *delivered*, against a link that loses at random or by overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protocol.config import TransportConfig
from protocol.pacing import CREDIT_SECONDS, DEADBAND, VERDICT_FRAMES, WINDOW_FRAMES, Pacer

BATCH = 44
LINK = 1e9
SHARE = LINK / 3
CONFIG = TransportConfig(link_rate=LINK)
FRAME_BITS = 8 * CONFIG.wire_bytes


def frames_per_second(bits: float) -> float:
    return bits / FRAME_BITS


def make(share: float | None = SHARE, **changes: object) -> Pacer:
    pacer = Pacer(TransportConfig(**{"link_rate": LINK, **changes}), share, BATCH)
    pacer.start(0.0)
    return pacer


class Path:
    """A receiver's reports every 10 ms: frames leave at the pacer's rate, `deliver(rate)` of each window arrives."""

    def __init__(self, pacer: Pacer, deliver, seed: int = 1) -> None:
        self.pacer, self.deliver = pacer, deliver
        self.random = np.random.default_rng(seed)
        self.sent, self.arrived = 0.0, 0

    def windows(self, count: int) -> list[float]:
        """bit/s of the pacer after each of `count` windows."""
        rates = []
        for _ in range(count):
            frames = self.pacer.rate * 0.01
            before, self.sent = int(self.sent), self.sent + frames
            self.arrived += self.random.binomial(int(self.sent) - before, self.deliver(self.pacer.rate))
            self.pacer.observe(int(self.sent), self.arrived)
            rates.append(self.pacer.rate * FRAME_BITS)
        return rates


# --- credit ---


def test_credit_fills_at_the_rate_and_is_spent() -> None:
    pacer = make()
    rate = frames_per_second(SHARE)
    assert pacer.allowance(0.0) == BATCH      # one batch at once
    pacer.spend(BATCH)
    assert pacer.allowance(0.0) == 0
    assert pacer.wait(BATCH) == pytest.approx(BATCH / rate)
    assert pacer.allowance(10.5 / rate) == 10
    assert pacer.wait(BATCH) == pytest.approx((BATCH - 10.5) / rate)
    assert pacer.allowance(BATCH / rate + 1e-9) == BATCH
    assert pacer.wait(BATCH) == 0


def test_credit_does_not_pile_up_while_the_sender_sleeps() -> None:
    pacer = make()
    assert pacer.allowance(60.0) == int(frames_per_second(SHARE) * CREDIT_SECONDS)
    slow = make(share=1e6)
    assert slow.allowance(60.0) == 2 * BATCH      # a whole batch must fit, or it could never be sent


def test_paced_sending_keeps_the_rate() -> None:
    pacer, sent, now = make(), 0, 0.0
    while now < 1.0:
        if pacer.allowance(now) >= BATCH:
            pacer.spend(BATCH)
            sent += BATCH
        else:
            now += pacer.wait(BATCH) + 1e-6
    assert sent * FRAME_BITS == pytest.approx(SHARE, rel=0.01)


@pytest.mark.parametrize(
    ("pacer", "rate"),
    [
        (make(pacing="none"), math.inf),
        (make(share=None), math.inf),      # the server names no share, so there is nothing to hold
        (make(pacing="fixed", fixed_rate=2e8), frames_per_second(2e8)),
    ],
    ids=["none", "no share", "fixed"],
)
def test_modes_without_feedback_keep_their_rate_under_loss(pacer: Pacer, rate: float) -> None:
    pacer.observe(10_000, 3_000)
    pacer.observe(20_000, 6_000)
    assert pacer.rate == rate
    if math.isinf(rate):
        assert pacer.allowance(0.0) == BATCH
        assert pacer.wait(BATCH) == 0.0


# --- the share held delivered ---


@pytest.mark.parametrize("seed", range(5))
def test_seventy_per_cent_random_loss_is_made_up_for_up_to_the_link_rate(seed: int) -> None:
    # 1/3 of the link / 0.3 exceeds the link, so the boost ends there.
    rates = Path(make(), lambda rate: 0.3, seed).windows(20)
    assert max(rates) <= LINK * 1.0001
    assert min(rates[3:]) > 0.98 * LINK


def test_thirty_per_cent_random_loss_delivers_the_share() -> None:
    path = Path(make(), lambda rate: 0.7)
    rates = path.windows(20)
    assert np.mean(rates[3:]) * 0.7 == pytest.approx(SHARE, rel=0.05)


def test_a_boost_that_does_not_deliver_more_falls_back_for_the_rest_of_the_round() -> None:
    # A queue that overflows: 200 Mbit/s get through, however much is sent.
    bottleneck = frames_per_second(2e8)
    path = Path(make(), lambda rate: min(1.0, bottleneck / rate))
    rates = path.windows(30)
    assert max(rates) > 1.2 * SHARE      # it tried
    assert rates[5:] == pytest.approx([SHARE] * 25)
    path.pacer.start(1.0)
    path.sent, path.arrived = 0.0, 0
    assert max(path.windows(5)) > 1.2 * SHARE      # a new round tries again


def test_the_rate_returns_to_the_share_when_the_burst_is_over() -> None:
    loss = [0.7]
    path = Path(make(), lambda rate: 1 - loss[0])
    assert path.windows(5)[-1] > 0.98 * LINK
    loss[0] = 0.0
    assert path.windows(5)[1:] == pytest.approx([SHARE] * 4)


def test_loss_within_the_deadband_is_not_made_up_for() -> None:
    pacer = make()
    below, above = round(1000 * (1 - 0.9 * DEADBAND)), round(1000 * (1 - 1.1 * DEADBAND))
    pacer.observe(1000, below)
    assert pacer.rate == frames_per_second(SHARE)
    pacer.observe(2000, below + above)
    assert pacer.rate > frames_per_second(SHARE)


def test_too_few_frames_say_nothing() -> None:
    pacer = make()
    pacer.observe(WINDOW_FRAMES - 1, 0)
    assert pacer.rate == frames_per_second(SHARE)
    pacer.observe(WINDOW_FRAMES, 0)
    assert pacer.rate > frames_per_second(SHARE)


def test_a_new_pass_counts_from_zero() -> None:
    pacer = make()
    pacer.observe(1000, 1000)
    pacer.observe(200, 200)      # pass 2 begins: 200 of 200, not 800 fewer than before
    pacer.observe(400, 400)
    assert pacer.rate == frames_per_second(SHARE)
    pacer.observe(100, 50)      # pass 3, with loss: seen within the pass, not only past the length of the one before
    pacer.observe(300, 150)
    assert pacer.rate == pytest.approx(frames_per_second(2 * SHARE))


@pytest.mark.parametrize(("after", "keeps"), [(0.39, True), (0.36, False)])
def test_a_boost_is_judged_by_whether_the_loss_grew_with_it(after: float, keeps: bool) -> None:
    # Half arrives, so the rate doubles. A full queue would then pass a quarter, random loss still a half; the verdict
    # lies in the middle, at 0.375.
    pacer = make(link_rate=None)
    base = pacer.rate
    pacer.observe(1000, 500)
    assert pacer.rate == pytest.approx(2 * base)
    pacer.observe(1000 + VERDICT_FRAMES // 2, 500 + round(after * VERDICT_FRAMES / 2))
    assert pacer.rate > base      # too early to tell
    pacer.observe(1000 + VERDICT_FRAMES, 500 + round(after * VERDICT_FRAMES))
    assert (pacer.rate > base) is keeps
    pacer.observe(3000, 1000)
    assert (pacer.rate > base) is keeps


def test_losing_everything_asks_for_the_whole_link_and_no_more() -> None:
    pacer = make()
    pacer.observe(1000, 0)
    assert pacer.rate == frames_per_second(LINK)


def test_a_share_above_the_own_link_is_not_cut() -> None:
    assert make(share=2 * LINK).rate == frames_per_second(2 * LINK)
