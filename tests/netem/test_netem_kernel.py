"""What only a kernel with netem can do: delays that packets really have, and the injector that `auto` prefers."""

from __future__ import annotations

import json

import pytest
from private_net import run_private

from testbed.bursts import choose_injector
from testbed.bursts.netem import netem_problem
from testbed.shaping import qdisc_problem

pytestmark = pytest.mark.root


def test_netem_is_here_and_preferred():
    assert qdisc_problem("netem") is None
    assert netem_problem() is None
    assert choose_injector().name == "netem"


def test_latency_and_jitter_read_back_and_are_what_packets_meet():
    report = json.loads(run_private("star_script.py", "latency"))
    delays = [
        qdisc["options"]["delay"]
        for link in report["links"]
        for qdisc in link["qdiscs"]
        if qdisc["kind"] == "netem"
    ]
    assert len(delays) == 4, "both ends of both links"
    for delay in delays:
        assert delay["delay"] == pytest.approx(5e-3, abs=2e-6)
        assert delay["jitter"] == pytest.approx(0.5e-3, abs=2e-6)
    # Out and back, each through the two ends of two links, every one of them 5 ms less 0.5 ms at least.
    assert min(report["round_trips"]) >= 4 * 4.5e-3
