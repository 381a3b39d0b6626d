"""Losses of engine local: drawn with a seed where frames are received, and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from scenarios.events import LossEvent, PartitionEvent
from testbed.bursts import Counters, InjectorError, random_loss
from testbed.bursts.local import LocalInjector, LocalLinks

HOSTS = ("w1", "w2")
AT = {"at": {"iteration": 0}}


@pytest.fixture
def injector(tmp_path: Path) -> LocalInjector:
    return LocalInjector(tmp_path, HOSTS)


def loss(**fields: object) -> LossEvent:
    return LossEvent.model_validate({"action": "loss", "duration": "1 iteration"} | AT | fields)


def test_without_a_burst_all_frames_arrive_and_are_counted(tmp_path, injector):
    link = LocalLinks(tmp_path, "srv", 1).link("w1", "to_server")
    assert link.keep(10) is None
    assert link.keep(5) is None
    assert injector.counters()["w1", "to_server"] == Counters(15, 0)


@pytest.mark.parametrize("share", [0.05, 0.7, 1.0])
def test_a_burst_loses_its_share(tmp_path, injector, share: float):
    link = LocalLinks(tmp_path, "srv", 1).link("w1", "to_server")
    injector.set({("w1", "to_server"): [random_loss(share)]})
    kept = np.concatenate([link.keep(44) for _ in range(500)])
    low, high = stats.binom.interval(0.9999, 22_000, share)
    counts = injector.counters()["w1", "to_server"]
    assert low <= counts.dropped <= high
    assert counts == Counters(22_000, np.count_nonzero(~kept))


def spells(lost: np.ndarray) -> np.ndarray:
    """Lengths of the runs of losses."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], lost, [0]])))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize(
    ("fields", "mean_spell"),
    [
        ({"gemodel": {"p": "2%", "r": "10%"}}, 10),
        ({"gemodel": {"p": "2%", "r": "10%", "bad": "50%", "good": "1%"}}, None),
        ({"state": {"p13": "2%", "p31": "20%"}}, 5),
        ({"state": {"p13": "2%", "p31": "20%", "p32": "30%", "p23": "60%", "p14": "5%"}}, None),
        ({"loss": "30%", "correlation": "60%"}, None),
    ],
)
def test_losses_come_in_the_spells_of_their_chain(tmp_path, injector, fields, mean_spell):
    event = loss(**fields)
    link = LocalLinks(tmp_path, "srv", 1).link("w1", "to_server")
    injector.set({("w1", "to_server"): [event]})
    lost = ~np.concatenate([link.keep(44) for _ in range(5000)])
    assert lost.mean() == pytest.approx(event.expected_loss, abs=0.02)
    if mean_spell:
        assert spells(lost).mean() == pytest.approx(mean_spell, rel=0.1)
    else:
        assert spells(lost).mean() > 1.15 / (1 - event.expected_loss), "as if drawn independently"


def test_draws_depend_on_seed_node_and_link_alone(tmp_path, injector):
    for host in HOSTS:
        injector.set({(host, "to_server"): [random_loss(0.5)]})

    def draws(node: str, seed: int, host: str) -> list[bool]:
        return LocalLinks(tmp_path, node, seed).link(host, "to_server").keep(64).tolist()

    same = draws("srv", 1, "w1")
    assert draws("srv", 1, "w1") == same
    for other in (draws("srv", 2, "w1"), draws("srv", 1, "w2"), draws("w1", 1, "w1")):
        assert other != same


def test_what_the_engine_sets_reaches_a_process_at_once(tmp_path, injector):
    links = LocalLinks(tmp_path, "srv", 1)
    first, second = (links.link(host, "to_server") for host in HOSTS)
    injector.set({("w1", "to_server"): [random_loss(1.0)]})
    assert not first.keep(8).any()
    assert second.keep(8) is None
    injector.set({("w1", "to_server"): []})
    assert first.keep(8) is None
    cut = {"action": "partition", "duration": "1s", "protocol": "udp"} | AT
    injector.set({("w1", "to_server"): [loss(loss="1%"), PartitionEvent.model_validate(cut)]})
    assert not first.keep(8).any()
    assert injector.counters()["w1", "to_server"] == Counters(24, 16)


def test_the_servers_own_link_is_refused(injector):
    with pytest.raises(InjectorError, match="srv to_server: engine local has the links of workers only"):
        injector.set({("srv", "to_server"): []})
