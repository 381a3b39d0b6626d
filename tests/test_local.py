"""Losses of engine local: drawn with a seed where frames are received, and counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from testbed.bursts import Counters
from testbed.bursts.local import Impairments, LocalInjector

BURST = [("w1", "to_server", 0.7)]


def test_without_a_burst_all_frames_arrive_and_are_counted():
    link = Impairments("srv", 1).link("w1", "to_server")
    assert link.keep(10) is None
    assert link.keep(5) is None
    assert (link.seen, link.dropped) == (15, 0)


@pytest.mark.parametrize("loss", [0.05, 0.7, 1.0])
def test_a_burst_loses_its_share(loss: float):
    impairments = Impairments("srv", 1)
    link = impairments.link("w1", "to_server")
    impairments.set([("w1", "to_server", loss)])
    kept = np.concatenate([link.keep(44) for _ in range(500)])
    low, high = stats.binom.interval(0.9999, 22_000, loss)
    assert low <= link.dropped <= high
    assert (link.seen, link.dropped) == (22_000, np.count_nonzero(~kept))


def test_draws_depend_on_seed_node_and_link_alone():
    def draws(node: str, seed: int, host: str) -> list[bool]:
        impairments = Impairments(node, seed)
        link = impairments.link(host, "to_server")
        impairments.set([(host, "to_server", 0.5)])
        return link.keep(64).tolist()

    same = draws("srv", 1, "w1")
    assert draws("srv", 1, "w1") == same
    for other in (draws("srv", 2, "w1"), draws("srv", 1, "w2"), draws("w1", 1, "w1")):
        assert other != same


def test_a_loss_is_over_when_the_gate_no_longer_lists_it():
    impairments = Impairments("srv", 1)
    first, second = (impairments.link(host, "to_server") for host in ("w1", "w2"))
    impairments.set(BURST)
    assert (first.probability, second.probability) == (0.7, 0.0)
    impairments.set([("w2", "to_server", 0.2), ("w2", "to_worker", 0.9)])
    assert (first.probability, second.probability) == (0.0, 0.2)


def test_the_engine_has_the_latest_counters_of_each_link():
    impairments, injector = Impairments("srv", 1), LocalInjector()
    links = [impairments.link(host, "to_server") for host in ("w1", "w2")]
    assert impairments.link("w1", "to_server") is links[0]
    for count in (10, 5):
        links[0].keep(count)
        injector.take(json.loads(json.dumps(impairments.counters())))
    assert injector.counters() == {("w1", "to_server"): Counters(15, 0), ("w2", "to_server"): Counters(0, 0)}
