"""From the scenario's link to commands, and what the kernel then does with real traffic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from private_net import needs_root, run_private

from scenarios import LeafSpine, Link, Star, TwoDatacenters
from testbed import shaping
from testbed.shaping import ShapingError


def link(**fields: Any) -> Link:
    return Link.model_validate({"rate": "1gbit"} | fields)


def words(plan: list[list[str]]) -> list[str]:
    return [" ".join(command) for command in plan]


def test_plan_of_a_switch_port():
    assert words(shaping.commands(link(limit=300), "s1-w1", "switch")) == [
        "ip link set dev s1-w1 mtu 1500",
        "ethtool -K s1-w1 tso off gro off",
        "tc qdisc add dev s1-w1 root handle 1: htb default 1",
        "tc class add dev s1-w1 parent 1: classid 1:1 htb rate 1000000000bit ceil 1000000000bit "
        "burst 125000 cburst 125000 quantum 15140",
        "tc qdisc add dev s1-w1 parent 1:1 handle 10: pfifo limit 300",
    ]


def test_hosts_segment_before_the_wire_and_join_after_it():
    plan = words(shaping.commands(link(), "w1-eth0", "host"))
    assert "ethtool -K w1-eth0 tso off tx-udp-segmentation off gro on" in plan
    assert "> /sys/class/net/w1-eth0/gro_flush_timeout" in plan[-1]


def test_latency_takes_netem_whose_limit_leaves_the_queue_its_length():
    plan = words(shaping.commands(link(rate="100mbit", latency="12.112ms", jitter="1ms"), "s1-w1", "switch"))
    # 100 Mbit/s for 13.112 ms are 108.3 frames of 1514 bytes.
    assert plan[-1] == "tc qdisc add dev s1-w1 parent 1:1 handle 10: netem limit 1109 delay 12112.000us 1000.000us"


def test_slow_links_keep_a_bucket_of_whole_frames():
    assert shaping.burst_bytes(link(rate="1mbit")) == 10 * 1514
    assert shaping.burst_bytes(link(rate="10gbit")) == 1_250_000


def state(**changes: Any) -> dict[str, Any]:
    leaf = {"kind": "pfifo", "parent": "1:1", "options": {"limit": 1000}}
    return {
        "interface": "s1-w1",
        "side": "switch",
        "mtu": 1500,
        "rate_bps": 1e9,
        "burst_bytes": 124992,
        "qdiscs": [{"kind": "htb", "root": True}, leaf],
        "offloads": {"tcp-segmentation-offload": "off", "generic-receive-offload": "off"},
    } | changes


def test_what_was_asked_passes():
    shaping.verify(state(), link())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rate_bps": 9e8}, r"rate \(bit/s\): asked 1e\+09, is 900000000"),
        ({"rate_bps": None}, r"rate \(bit/s\): asked 1e\+09, is None"),
        ({"mtu": 9000}, "mtu: asked 1500, is 9000"),
        ({"qdiscs": []}, "queue: asked pfifo, is None; queue limit: asked 1000, is None"),
        ({"offloads": {"tcp-segmentation-offload": "on", "generic-receive-offload": "off"}}, "asked off, is on"),
    ],
)
def test_differences_name_the_link_end_and_both_values(changes, text):
    with pytest.raises(ShapingError, match=f"link end s1-w1: .*{text}"):
        shaping.verify(state(**changes), link())


def test_a_missing_delay_is_a_difference():
    delayed = link(latency="5ms")
    leaf = {"kind": "netem", "parent": "1:1", "options": {"limit": 1413, "delay": {"delay": 0.004, "jitter": 0}}}
    with pytest.raises(ShapingError, match=r"latency \(s\): asked 0.005, is 0.004$"):
        shaping.verify(state(qdiscs=[leaf]), delayed)
    leaf["options"]["delay"]["delay"] = 0.00499995
    shaping.verify(state(qdiscs=[leaf]), delayed)
    # What tc prints for 5 ms and 0.5 ms.
    leaf["options"] = {"limit": 1455, "delay": {"delay": 0.004999, "jitter": 0.000499}}
    shaping.verify(state(qdiscs=[leaf]), link(latency="5ms", jitter="0.5ms"))


def test_a_kernel_without_netem_is_refused_only_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(shaping, "qdisc_problem", lambda kind: "no CONFIG_X" if kind == "netem" else None)
    shaping.check_kernel(Star(link=link()))
    with pytest.raises(ShapingError, match=r"topology.link: latency 0.001 s .*no CONFIG_X; set both to 0ms"):
        shaping.check_kernel(Star(link=link(latency="1ms")))
    with pytest.raises(ShapingError, match=r"topology.wan: latency 0.02 s .*no CONFIG_X"):
        shaping.check_kernel(TwoDatacenters(kind="two_datacenters", link=link(), wan=link(latency="20ms")))


def test_each_end_of_each_link_gets_the_shape_of_its_link():
    narrow = link(rate="250mbit", limit=200)
    topology = LeafSpine(kind="leaf_spine", workers=2, leaves=2, link=link(), uplink=narrow)
    ends = {end.interface: (end.node, end.side, end.link) for end in shaping.link_ends(topology)}
    assert ends == {
        "srv-eth0": ("srv", "host", link()),
        "leaf1-srv": ("leaf1", "switch", link()),
        "w1-eth0": ("w1", "host", link()),
        "leaf1-w1": ("leaf1", "switch", link()),
        "w2-eth0": ("w2", "host", link()),
        "leaf2-w2": ("leaf2", "switch", link()),
        "leaf1-spine1": ("leaf1", "switch", narrow),
        "spine1-leaf1": ("spine1", "switch", narrow),
        "leaf2-spine1": ("leaf2", "switch", narrow),
        "spine1-leaf2": ("spine1", "switch", narrow),
    }


@pytest.mark.root
@needs_root
def test_problems_name_the_kernel_option():
    problem = shaping.qdisc_problem("netem")
    assert problem is None or "CONFIG_NET_SCH_NETEM" in problem
    assert shaping.qdisc_problem("htb") is None


@pytest.mark.root
@needs_root
def test_links_carry_their_rate_hold_their_queue_and_say_so():
    report = json.loads(run_private("star_script.py", "shaping"))
    assert {entry["interface"] for entry in report["links"]} == {"srv-eth0", "s1-srv", "w1-eth0", "s1-w1"}
    assert {entry["rate_bps"] for entry in report["links"]} == {200e6}
    # Never faster, apart from the bucket and the receiver's clock; slower only where the machine is busy.
    assert report["rate"] >= 0.5 * 200e6
    assert max(report["rates"]) <= 1.05 * 200e6
    assert report["datagrams_per_call"] > 4
    sent = {entry["interface"]: entry["sent_packets"] for entry in report["drops"]}
    assert sent["s1-srv"] >= 10_000
    # 400 datagrams at once to a port of 2 Mbit/s: 100 wait, the bucket's 10 and half a second's 83 pass at most.
    assert 400 - 100 - 10 - 100 <= report["overflow"] <= 400 - 100
    assert "link end s1-srv: queue limit: asked 1000, is 100; rate" in report["difference"]
