"""What topologies may be written in a scenario, and what is said about the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios import LeafSpine, Scenario, ScenarioError, Star, TwoDatacenters, json_schema, load

FABRIC = "topology={kind: leaf_spine, workers: 4, leaves: 2, uplink: {rate: 500mbit}, link: {rate: 1gbit}}"
DATACENTERS = "topology={kind: two_datacenters, workers: 5, wan: {rate: 100mbit, latency: 20ms}, link: {rate: 1gbit}}"


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [((), Star), (("topology.kind=star",), Star), ((FABRIC,), LeafSpine), ((DATACENTERS,), TwoDatacenters)],
)
def test_the_kind_decides_and_survives_in_the_record_of_a_run(overrides, kind):
    scenario = load("demo", overrides=overrides)
    assert type(scenario.topology) is kind
    assert Scenario.from_resolved(scenario.model_dump(mode="json")) == scenario


def test_a_run_recorded_before_there_were_kinds_was_a_star():
    record = load("demo").model_dump(mode="json")
    del record["topology"]["kind"]
    assert Scenario.from_resolved(record) == load("demo")


def test_half_of_the_workers_are_local_unless_said_otherwise():
    assert load("demo", overrides=[DATACENTERS]).topology.local_workers == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["topology.kind=leafspine"], "topology.kind: 'leafspine' is not .*; did you mean 'leaf_spine'?"),
        (["topology.kind=leaf_spine"], "topology: write either 'oversubscription', such as 4, or 'uplink'"),
        ([FABRIC, "topology.oversubscription=4"], "topology: write either 'oversubscription', such as 4, or 'uplink'"),
        ([FABRIC, "topology.leaves=5"], "topology.leaves: 5 leaves for 4 workers: some would be empty"),
        (["topology.leaves=3"], "topology.leaves: unknown key 'leaves'"),
        ([FABRIC, "topology.uplink.mtu=1400"], "topology.uplink.mtu: 1400 differs from topology.link.mtu, 1500"),
        ([FABRIC, "topology.uplink.rte=1gbit"], "topology.uplink.rte: unknown key 'rte'; did you mean 'rate'"),
        ([DATACENTERS, "topology.wan.mtu=9000"], "topology.wan.mtu: 9000 differs from topology.link.mtu, 1500"),
        ([DATACENTERS, "topology.local_workers=5"], "topology.local_workers: 5 of 5 workers: none is left"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(ScenarioError, match=message):
        load("demo", overrides=overrides)


def test_a_mistake_in_a_file_has_its_line(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: examples/leaf-spine\ntopology:\n  oversubscription: 0\n")
    with pytest.raises(ScenarioError, match=r"mine.yaml:3: topology.oversubscription: should be greater than 0"):
        load(path)


def test_what_templates_propose_is_valid():
    definitions = json_schema()["$defs"].values()
    proposed = [rules["examples"][0] for rules in definitions if "link" in str(rules.get("examples"))]
    assert {type(load("demo", overrides=[f"topology={json.dumps(each)}"]).topology) for each in proposed} == {
        LeafSpine, TwoDatacenters,
    }  # fmt: skip
