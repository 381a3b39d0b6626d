"""Topologies as data, and real traffic over each; tests/test_shaping.py and tests/test_bursts.py load the star."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mininet.topo import Topo
from private_net import needs_root, run_private
from pydantic import TypeAdapter

import testbed.topology as topology
from scenarios import Topology, load
from scenarios.topology import AnyTopology
from testbed import bursts, shaping, switches
from testbed.bursts import InjectorError
from testbed.isolation import ISOLATE
from testbed.switches import LinuxBridge, OpenVSwitch, SwitchError, switch_class
from testbed.topology import (
    LeafSpineTopo,
    ScenarioTopo,
    StarTopo,
    TopologyError,
    TwoDatacentersTopo,
    forwarding,
    host_ip,
    host_mac,
    host_names,
    silent_ports,
)
from testbed.transport import transport_config

FABRIC = {"kind": "leaf_spine", "workers": 7, "leaves": 3, "spines": 2, "oversubscription": 2}
DATACENTERS = {"kind": "two_datacenters", "workers": 4, "local_workers": 1, "wan": {"rate": "100mbit"}}
KINDS = [{}, FABRIC, {**FABRIC, "spines": 1}, {**FABRIC, "leaves": 7, "spines": 5}, DATACENTERS]


def made(**fields: Any) -> Topology:
    return TypeAdapter(AnyTopology).validate_python({"link": {"rate": "1gbit"}} | fields)


def ends(topo: Topo) -> set[tuple[str, str, str, str]]:
    fields = ("node1", "intfName1", "node2", "intfName2")
    return {tuple(info[field] for field in fields) for *_, info in topo.links(withInfo=True)}


def test_star_has_a_server_and_the_workers_around_one_switch():
    star = StarTopo(workers=3)
    assert star.switches() == ["s1"]
    assert sorted(star.hosts()) == sorted(host_names(3)) == ["srv", "w1", "w2", "w3"]
    assert ends(star) == {(host, f"{host}-eth0", "s1", f"s1-{host}") for host in host_names(3)}
    assert {host: star.nodeInfo(host)["ip"] for host in ("srv", "w1", "w3")} == {
        "srv": "10.0.0.1/24",
        "w1": "10.0.0.2/24",
        "w3": "10.0.0.4/24",
    }


def test_leaf_spine_links_every_leaf_to_every_spine():
    fabric = LeafSpineTopo(workers=4, leaves=2, spines=2)
    trunks = {(one, two) for one, _, two, _ in ends(fabric) if two.startswith("spine")}
    assert trunks == {("leaf1", "spine1"), ("leaf1", "spine2"), ("leaf2", "spine1"), ("leaf2", "spine2")}
    places = {one: two for one, _, two, _ in ends(fabric) if one not in ("leaf1", "leaf2")}
    assert places == {"srv": "leaf1", "w1": "leaf1", "w2": "leaf1", "w3": "leaf2", "w4": "leaf2"}


def test_two_datacenters_share_one_link():
    network = TwoDatacentersTopo(workers=3, local_workers=1)
    assert ends(network) == {
        ("srv", "srv-eth0", "dc1", "dc1-srv"),
        ("w1", "w1-eth0", "dc1", "dc1-w1"),
        ("w2", "w2-eth0", "dc2", "dc2-w2"),
        ("w3", "w3-eth0", "dc2", "dc2-w3"),
        ("dc1", "dc1-dc2", "dc2", "dc2-dc1"),
    }


@pytest.mark.parametrize(
    "fields", [{}, {**FABRIC, "leaves": 64, "spines": 16}, DATACENTERS]
)
def test_the_largest_still_have_valid_names_and_addresses(fields):
    names = [name for end in ends(ScenarioTopo(made(**fields | {"workers": 253}))) for name in (end[1], end[3])]
    assert max(map(len, names)) <= 15
    assert len(set(names)) == len(names)
    assert host_ip("w253") == "10.0.0.254"
    assert host_mac("w253") == "00:00:00:00:00:fe"


@pytest.mark.parametrize("workers", [0, 254])
def test_stars_that_do_not_fit_are_refused(workers):
    with pytest.raises(TopologyError, match=f"topology.workers: .*{workers}"):
        StarTopo(workers=workers)


def test_an_empty_leaf_is_refused():
    with pytest.raises(TopologyError, match=r"topology\.leaves: 3 leaves for 2 workers: some would be empty"):
        LeafSpineTopo(workers=2, leaves=3)


@pytest.mark.parametrize("fields", KINDS)
def test_tables_lead_every_frame_to_its_host_along_cables(fields):
    network = made(**fields)
    tables = forwarding(network)
    peers = {}
    for cable in network.cables():
        lower, upper = topology.cable_interfaces(cable, network)
        peers[lower], peers[upper] = cable.upper, cable.lower
    for source, target in permutations(network.host_names, 2):
        at, hops = network.switch_of(source), [source]
        while at != target:
            hops.append(at)
            assert len(hops) < 5, f"{source} to {target} goes round: {hops}"
            at = peers[tables[at][host_mac(target)]]
        assert [*hops, target] == network.path(source, target) == network.path(target, source)[::-1]


@pytest.mark.parametrize("fields", KINDS)
def test_ports_that_flood_form_a_tree(fields):
    network = made(**fields)
    silent = silent_ports(network)
    open_cables = [
        cable for cable in network.trunks() if not silent.intersection(topology.cable_interfaces(cable, network))
    ]
    assert len(open_cables) == len(network.switches) - 1
    assert {end for cable in open_cables for end in cable[:2]} in ({*network.switches}, set())


def test_pairs_of_leaves_are_spread_over_the_spines():
    paths = [made(**FABRIC).path(worker, "srv") for worker in ("w4", "w7")]
    assert paths == [["w4", "leaf2", "spine2", "leaf1", "srv"], ["w7", "leaf3", "spine1", "leaf1", "srv"]]


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({}, [1e9 / 3] * 3),
        # Two of four behind an uplink of 300 Mbit/s; the server's link alone would give each 250.
        ({"kind": "leaf_spine", "workers": 4, "uplink": {"rate": "300mbit"}}, [250e6, 250e6, 150e6, 150e6]),
        # Both other leaves meet on the first leaf's one uplink.
        ({"kind": "leaf_spine", "leaves": 3, "uplink": {"rate": "300mbit"}}, [1e9 / 3, 150e6, 150e6]),
        # They come over two spines, so nothing but the server's link is shared.
        ({"kind": "leaf_spine", "leaves": 3, "spines": 2, "uplink": {"rate": "400mbit"}}, [1e9 / 3] * 3),
        (DATACENTERS, [250e6, 1e8 / 3, 1e8 / 3, 1e8 / 3]),
    ],
)
def test_a_sender_gets_its_share_of_the_narrowest_link_on_its_way(fields, shares):
    assert made(**fields).shares() == pytest.approx(shares)


@pytest.mark.parametrize("fields", KINDS)
def test_shares_fill_no_link_beyond_its_rate(fields):
    network = made(**fields)
    load = {frozenset(cable[:2]): 0.0 for cable in network.cables()}
    for worker, share in zip(network.worker_names, network.shares(), strict=True):
        for hop in pairwise(network.path(worker, "srv")):
            load[frozenset(hop)] += share
    for cable in network.cables():
        assert load[frozenset(cable[:2])] <= cable.link.rate * (1 + 1e-9)


def test_oversubscription_is_that_of_the_fullest_leaf():
    # leaf1 has the server and three workers: 4 Gbit/s over 2 uplinks at 2:1.
    assert {cable.link.rate for cable in made(**FABRIC).trunks()} == {1_000_000_000}
    assert {cable.link.rate for cable in made(**FABRIC | {"oversubscription": 4}).trunks()} == {500_000_000}


def test_switches_are_chosen_by_name():
    assert switch_class("auto") is switch_class("bridge") is LinuxBridge
    assert switch_class("ovs") is OpenVSwitch


def test_open_vswitch_that_is_not_there_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr(switches.shutil, "which", lambda tool: None)
    with pytest.raises(SwitchError, match=r"ovs-vswitchd is not installed \(apt install"):
        switches._Daemons()


@pytest.mark.root
@needs_root
@pytest.mark.parametrize(
    ("topo", "pings"), [("star,2", 6), ("leafspine,3,2,1", 12), ("leafspine,3,3,2", 12), ("twodc,3,1", 12)]
)
def test_mininet_loads_the_topologies_by_itself(topo, pings):
    program = Path(sys.executable).with_name("mn")
    options = ["--custom", topology.__file__, "--topo", topo, "--switch", "ipbridge", "--controller", "none"]
    answer = subprocess.run(
        [*ISOLATE, sys.executable, str(program), *options, "--test", "pingall"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert f"0% dropped ({pings}/{pings} received)" in answer.stdout + answer.stderr


def traffic(fields: dict[str, Any], *senders: str) -> dict[str, Any]:
    return json.loads(run_private("star_script.py", "fabric", json.dumps(fields), *senders))


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("switch", ["bridge", "ovs"])
def test_an_uplink_carries_its_rate_and_no_more(switch):
    if switch == "ovs":
        try:
            switches.ovs_datapath()
        except SwitchError as problem:
            pytest.skip(str(problem))
    fields = {"kind": "leaf_spine", "workers": 4, "leaves": 2, "switch": switch}
    fields |= {"link": {"rate": "200mbit"}, "uplink": {"rate": "50mbit", "limit": 100}}
    report = traffic(fields, "w3", "w4")
    assert report["pinged"] == 20
    rates = {entry["interface"]: entry["rate_bps"] for entry in report["links"]}
    assert len(rates) == 14
    assert {port for port, rate in rates.items() if rate == 50e6} == {
        "leaf1-spine1", "spine1-leaf1", "leaf2-spine1", "spine1-leaf2",
    }  # fmt: skip
    # Never faster, apart from the bucket and the receiver's clock; slower only where the machine is busy.
    assert (0.5 if switch == "bridge" else 0.1) * 50e6 <= report["rate"] <= 1.05 * 50e6
    # Two senders at 200 Mbit/s each: what does not fit is lost where the narrow link begins, and only there.
    # Open vSwitch in user space may lose them itself, before that queue.
    dropped = {entry["interface"] for entry in report["drops"] if entry["dropped"]}
    assert dropped == {"leaf2-spine1"} or (switch == "ovs" and not dropped)


@pytest.mark.root
@needs_root
def test_leaves_send_over_different_spines():
    fields = {"kind": "leaf_spine", "workers": 3, "leaves": 3, "spines": 2}
    fields |= {"link": {"rate": "200mbit"}, "uplink": {"rate": "50mbit"}}
    report = traffic(fields, "w2", "w3")
    # Each leaf has its own spine to the first, so the two together exceed an uplink.
    assert 1.1 * 50e6 <= report["rate"] <= 2.1 * 50e6
    carried = {entry["interface"]: entry["sent_packets"] for entry in report["drops"]}
    assert min(carried["spine2-leaf1"], carried["spine1-leaf1"]) > 1000
    assert max(carried["leaf2-spine1"], carried["leaf3-spine2"]) < 200


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed.cli", "run", *arguments], capture_output=True, text=True, timeout=280
    )


@pytest.mark.root
@pytest.mark.slow
@needs_root
def test_training_over_two_tiers_with_a_burst_behind_the_uplink(tmp_path):
    answer = run_cli(
        "leaf-spine", "--engine", "mininet", "--out", str(tmp_path), "--set", "workload.iterations=6",
        "--set", "workload.iterations_per_epoch=6", "--set", "events.0.at.iteration=3",
        "--set", "transports={mlt: {tolerance: {policy: fixed, p: 2%}}}",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    folder = tmp_path / "leaf-spine" / "mlt-s1"
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "complete"
    assert {link["interface"]: link["rate_bps"] for link in run["links"]}["leaf2-spine1"] == 5e6
    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert (rounds["frames_delivered"] >= 0.98 * rounds["frames_total"]).all()
    hit = rounds[rounds["burst"]]
    assert set(hit["worker"]) == {"w3", "w4"}
    assert (hit["frames_sent"] > hit["frames_total"]).all()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert all(counter["dropped"] > 0 for counter in events[-1]["counters"])
    sent = {queue["interface"]: queue["sent_packets"] for queue in events[-1]["queues"]}
    frames = rounds.query("direction == 'reduce' and worker in ['w3', 'w4']")["frames_delivered"].sum()
    assert sent["leaf2-spine1"] >= frames


@pytest.mark.root
@needs_root
def test_a_long_link_is_refused_by_name_of_the_kernel_option_or_has_its_latency(tmp_path):
    problem = shaping.qdisc_problem("netem")
    if problem is None:
        fields = DATACENTERS | {"link": {"rate": "20mbit"}, "wan": {"rate": "5mbit", "latency": "20ms"}}
        report = traffic(fields, "w4")
        assert report["round_trip_s"]["w1"] < 0.02
        assert 0.04 <= report["round_trip_s"]["w4"] < 0.08
        assert 0.5 * 5e6 <= report["rate"] <= 1.05 * 5e6
        return
    answer = run_cli("cross-datacenter", "--engine", "mininet", "--out", str(tmp_path))
    assert answer.returncode != 0
    assert "topology.wan: latency 0.02 s" in answer.stderr
    assert "CONFIG_NET_SCH_NETEM" in answer.stderr
    assert not any(tmp_path.iterdir())


ON_HOSTS = "events.0.selector=[w3, w4]"


@pytest.mark.parametrize(("datapath", "refused"), [("netdev", True), ("system", False)])
def test_losses_that_open_vswitch_in_user_space_would_not_see_are_refused(monkeypatch, datapath, refused):
    monkeypatch.setattr(bursts, "ovs_datapath", lambda: datapath)
    scenario = load("leaf-spine", overrides=["topology.switch=ovs", ON_HOSTS])
    if refused:
        with pytest.raises(InjectorError, match=r"events.0: without kernel option CONFIG_OPENVSWITCH"):
            bursts.check_switch(scenario)
    else:
        bursts.check_switch(scenario)
    for other in ("events.0.direction=to_worker", "events.0.selector=[leaf2-spine1]"):
        bursts.check_switch(load("leaf-spine", overrides=["topology.switch=ovs", ON_HOSTS, other]))


def test_losses_sit_on_the_port_of_the_workers_own_switch():
    ends = bursts.link_ends(load("leaf-spine", overrides=[ON_HOSTS]))
    assert [(end.host, end.interface) for end in ends] == [("w3", "leaf2-w3"), ("w4", "leaf2-w4")]


def test_the_server_announces_the_shares_of_the_topology():
    config = transport_config(load("leaf-spine"), "dblp", 0, "")
    assert config.link_rate == 20e6
    assert config.shares == (5e6, 5e6, 2.5e6, 2.5e6)
