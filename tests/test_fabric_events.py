"""Events on topologies with more than one switch: on the links between switches, and on hosts behind them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiny
from private_net import needs_root, run_private
from pydantic import ValidationError
from test_bursts import skip_unless_possible

from testbed.bursts import InjectorError, check_switch, link_ends
from testbed.topology import upper_end

LINK = {"link": {"rate": "100mbit", "limit": 4000}}
LEAF_SPINE = {"kind": "leaf_spine", "workers": 4, "leaves": 2, "uplink": {"rate": "50mbit", "limit": 4000}} | LINK
THREE_LEAVES = {"kind": "leaf_spine", "workers": 3, "leaves": 3, "spines": 2, "oversubscription": 2} | LINK
DATACENTERS = {"kind": "two_datacenters", "workers": 4, "wan": {"rate": "50mbit", "limit": 4000}} | LINK
AT = {"at": {"iteration": 3}}


def links(topology: dict[str, Any], **event: Any) -> tuple[list, list]:
    """Of an event: its links, and the ways of gradients that it touches."""
    plan = tiny.scenario(AT | event, topology=topology)
    return plan.events[0].links(plan.topology), plan.events[0].channels(plan.topology)


def test_a_link_between_switches_carries_the_gradients_behind_it() -> None:
    assert links(LEAF_SPINE, selector=["leaf2-spine1"]) == (
        [("leaf2-spine1", "to_server")], [("w3", "to_server"), ("w4", "to_server")]
    )
    assert links(DATACENTERS, selector=["dc1-dc2", "w3"], direction="to_worker")[1] == [
        ("w3", "to_worker"), ("w4", "to_worker")
    ]
    # w2 comes over spine2 and w3 over spine1; each of them crosses two links.
    assert [name for name, _ in links(THREE_LEAVES, selector="trunks")[0]] == [
        "leaf1-spine1", "leaf3-spine1", "leaf1-spine2", "leaf2-spine2"
    ]


@pytest.mark.parametrize(
    ("topology", "event", "message"),
    [
        (LEAF_SPINE, {"selector": ["leaf3-spine1"]}, r"selector.0: unknown host or link 'leaf3-spine1'; did you mean"),
        (THREE_LEAVES, {"selector": ["leaf2-spine1"]}, r"selector.0: no gradient crosses 'leaf2-spine1', so noth"),
        (LINK, {"selector": ["dc1-dc2"]}, r"selector.0: unknown host 'dc1-dc2'; valid: w1, w2, w3, srv"),
        (LINK, {"selector": "trunks"}, r"selector: a star has no links between switches"),
        (DATACENTERS, {"action": "stop", "duration": "1s", "selector": ["w1", "dc1-dc2"]},
         r"selector.1: 'dc1-dc2' joins two switches; only hosts have processes"),
        (DATACENTERS, {"action": "traffic", "selector": ["dc1-dc2"]}, r"'dc1-dc2' joins two switches; cross traf"),
        (DATACENTERS, {"action": "traffic", "selector": "trunks"}, r"write 'workers', 'server', 'all', or a list"),
    ],
)
def test_what_cannot_be_selected(topology: dict[str, Any], event: dict[str, Any], message: str) -> None:
    whole = AT | ({} if "action" in event else tiny.BURST) | {"duration": "1 iteration"} | event
    with pytest.raises(ValidationError, match=message):
        tiny.scenario(topology=topology, events=[whole])


def test_bursts_on_one_link_between_switches_must_not_meet() -> None:
    with pytest.raises(ValidationError, match=r"overlaps events.0 on the link of dc1-dc2 to_server at iteration 3"):
        tiny.scenario(AT | {"selector": "trunks"}, AT | {"selector": ["dc1-dc2"]}, topology=DATACENTERS)


def test_datagrams_are_met_at_the_port_that_sends_them() -> None:
    plan = tiny.scenario(
        AT | {"selector": ["leaf1-spine1", "leaf2-spine1", "w3", "srv"], "direction": "both"}, topology=LEAF_SPINE
    )
    assert {(end.host, end.direction): (end.interface, end.hook) for end in link_ends(plan)} == {
        ("leaf1-spine1", "to_server"): ("spine1-leaf1", "egress"),
        ("leaf1-spine1", "to_worker"): ("leaf1-spine1", "egress"),
        ("leaf2-spine1", "to_server"): ("leaf2-spine1", "egress"),
        ("leaf2-spine1", "to_worker"): ("spine1-leaf2", "egress"),
        ("w3", "to_server"): ("leaf2-w3", "ingress"), ("w3", "to_worker"): ("leaf2-w3", "egress"),
        ("srv", "to_server"): ("leaf1-srv", "egress"), ("srv", "to_worker"): ("leaf1-srv", "ingress"),
    }
    assert upper_end("leaf2-spine1", plan.topology) == ("spine1", "spine1-leaf2")
    assert upper_end("w3", plan.topology) == ("leaf2", "leaf2-w3")


def test_open_vswitch_in_user_space_is_refused_only_what_enters_it(monkeypatch) -> None:
    monkeypatch.setattr("testbed.bursts.ovs_datapath", lambda: "netdev")
    topology = DATACENTERS | {"switch": "ovs"}
    check_switch(tiny.scenario(AT | {"selector": "trunks", "direction": "both"}, topology=topology))
    with pytest.raises(InjectorError, match=r"events.0: without kernel option CONFIG_OPENVSWITCH"):
        check_switch(tiny.scenario(AT | {"selector": ["w4"]}, topology=topology))


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("injector", ["bpf", "netem"])
@pytest.mark.parametrize(
    ("topology", "trunk", "ports", "way"),
    [
        (LEAF_SPINE, "leaf2-spine1", ["leaf2-spine1", "spine1-leaf2"], ["leaf1-spine1", "spine1-leaf2", "leaf2-w3"]),
        (DATACENTERS, "dc1-dc2", ["dc1-dc2", "dc2-dc1"], ["dc1-dc2", "dc2-w3"]),
    ],
    ids=["leaf-spine", "two-datacenters"],
)
def test_real_traffic_meets_every_action(injector, topology, trunk, ports, way) -> None:
    skip_unless_possible(injector)
    report = json.loads(run_private("fabric_script.py", injector, json.dumps(topology), trunk))
    assert report["trunk"] == pytest.approx([0.5, 0.5], abs=0.07)
    assert report["both"] == pytest.approx(0.35, abs=0.07)
    assert report["own"] == pytest.approx(0.7, abs=0.07)
    assert report["slow"] == ports
    for kind in ("udp", "tcp"):
        traffic = report[kind]
        assert traffic["sent"] > 100_000
        assert all(traffic[port] > 0.9 * min(traffic["sent"], 600_000) for port in way), traffic
        elsewhere = {"leaf2-w4", "dc2-w4", "leaf1-w1", "dc1-w1", "dc1-srv", "leaf1-srv"} & set(traffic)
        assert all(traffic[port] < 20_000 for port in elsewhere), f"flooded: {traffic}"
