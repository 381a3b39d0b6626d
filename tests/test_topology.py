"""The star as data, and the refusals; tests/test_shaping.py and tests/test_bursts.py send traffic over it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from private_net import needs_root

import testbed.topology as topology
from testbed.isolation import ISOLATE
from testbed.topology import LinuxBridge, StarTopo, TopologyError, host_ip, host_names, switch_class


def test_star_has_a_server_and_the_workers_around_one_switch():
    star = StarTopo(workers=3)
    assert star.switches() == ["s1"]
    assert sorted(star.hosts()) == sorted(host_names(3)) == ["srv", "w1", "w2", "w3"]
    fields = ("node1", "intfName1", "node2", "intfName2")
    ends = {tuple(info[field] for field in fields) for *_, info in star.links(withInfo=True)}
    assert ends == {(host, f"{host}-eth0", "s1", f"s1-{host}") for host in host_names(3)}
    assert {host: star.nodeInfo(host)["ip"] for host in ("srv", "w1", "w3")} == {
        "srv": "10.0.0.1/24",
        "w1": "10.0.0.2/24",
        "w3": "10.0.0.4/24",
    }


def test_the_largest_star_still_has_valid_names_and_addresses():
    names = [info[key] for *_, info in StarTopo(workers=253).links(withInfo=True) for key in ("intfName1", "intfName2")]
    assert max(map(len, names)) <= 15
    assert host_ip("w253") == "10.0.0.254"


@pytest.mark.parametrize("workers", [0, 254])
def test_stars_that_do_not_fit_are_refused(workers):
    with pytest.raises(TopologyError, match=f"{workers} is outside 1..253"):
        StarTopo(workers=workers)


def test_ovs_is_refused_with_a_remedy_where_it_does_not_answer(monkeypatch):
    monkeypatch.setattr(topology, "ovs_problem", lambda: "ovs-vsctl is not installed")
    with pytest.raises(TopologyError, match="ovs-vsctl is not installed; or use `switch: bridge`"):
        switch_class("ovs")
    assert switch_class("auto") is switch_class("bridge") is LinuxBridge


@pytest.mark.root
@needs_root
def test_mininet_loads_the_topology_by_itself():
    program = Path(sys.executable).with_name("mn")
    options = ["--custom", topology.__file__, "--topo", "star,2", "--switch", "ipbridge", "--controller", "none"]
    answer = subprocess.run(
        [*ISOLATE, sys.executable, str(program), *options, "--test", "pingall"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "0% dropped (6/6 received)" in answer.stdout + answer.stderr
