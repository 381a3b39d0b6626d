"""Every action does on real traffic what it says, with each injector that the kernel has."""

from __future__ import annotations

import json

import pytest
from private_net import needs_root, run_private
from test_bursts import skip_unless_possible

from testbed.bursts.actions import loss
from testbed.bursts.local import Draws

pytestmark = [pytest.mark.root, needs_root]


@pytest.fixture(scope="module", params=["bpf", "netem"])
def report(request: pytest.FixtureRequest) -> dict:
    """What was measured with one injector; what each action must do exactly is asserted in the script."""
    skip_unless_possible(request.param)
    return json.loads(run_private("vocabulary_script.py", request.param)) | {"injector": request.param}


def test_losses_come_in_the_spells_of_their_chain(report):
    import numpy as np
    from vocabulary_script import LOSSES, scenario

    for fields, measured in zip(LOSSES, report["chains"], strict=True):
        assert measured["lost"] == pytest.approx(measured["asked"], abs=0.03), fields
        event = scenario({"action": "loss"} | fields).events[0]
        ours = Draws(loss.chain(event), np.random.default_rng(1)).lost(400_000)
        starts = np.count_nonzero(np.diff(np.concatenate([[0], ours])) == 1)
        assert measured["spell"] == pytest.approx(ours.sum() / starts, rel=0.12), fields


def test_a_link_of_another_rate_takes_its_time(report):
    assert report["links"]["seconds"] >= report["links"]["least"] * 0.95


def test_delays_are_those_asked_for_and_stand_beside_a_loss(report):
    if report["injector"] != "netem":
        pytest.skip("only netem delays")
    mean, deviation = report["delay"]
    assert 0.019 < mean < 0.03
    assert 0.002 < deviation < 0.009
    mean, share = report["delay_and_loss"]
    assert 0.019 < mean < 0.03
    assert 0.35 < share < 0.65
    median, share = report["loss_alone"]
    assert median < 0.015
    assert 0.3 < share < 0.7


def test_reordering_and_damage_are_those_asked_for(report):
    if report["injector"] != "netem":
        pytest.skip("only netem reorders and damages")
    assert 0.1 < report["overtaken"] < 0.4
    assert 0.1 < report["corrupt"] < 0.25
