"""Kinds of transports: told apart by `kind`, which runs of the past do not have."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from scenarios import BoundedLoss, Gloo, Scenario, ScenarioError, Tcp, Udp, json_schema, load

KINDS = {"dblp": BoundedLoss, "udp": Udp, "tcp": Tcp, "gloo": Gloo}
ALL = [f"transports.{name}={{kind: {name}}}" for name in KINDS if name != "dblp"]


def test_the_kind_decides_and_survives_in_the_record_of_a_run() -> None:
    scenario = load("demo", overrides=ALL)
    assert {name: type(scenario.transports[name]) for name in KINDS} == KINDS
    assert Scenario.from_resolved(scenario.model_dump(mode="json")) == scenario


def test_a_run_recorded_before_there_were_kinds_was_of_bounded_loss() -> None:
    record = load("demo").model_dump(mode="json")
    for transport in record["transports"].values():
        del transport["kind"]
    assert Scenario.from_resolved(record) == load("demo")


def test_without_the_server_workers_are_the_hosts() -> None:
    scenario = load("demo", overrides=ALL)
    hosts = {name: transport.hosts(scenario.topology) for name, transport in scenario.transports.items()}
    assert hosts["gloo"] == ("w1", "w2", "w3")
    assert hosts["tcp"] == hosts["dblp"] == ("srv", "w1", "w2", "w3")


def test_another_kind_replaces_the_one_below(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: demo\nprofiles: {t: {transports: {mlt: {kind: tcp}, dblp: {pacing: none}}}}\n")
    transports = load(path, "t").transports
    assert transports["mlt"] == Tcp(kind="tcp")
    assert (transports["dblp"].tolerance.policy, transports["dblp"].pacing.mode) == ("phase_aware", "none")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{kind: tpc}", "transports.x.kind: 'tpc' is not .*; did you mean 'tcp'?"),
        ("{kind: tcp, pacing: share}", "transports.x.pacing: unknown key 'pacing'; valid: kind"),
        ("{kind: udp, tolerance: {policy: reliable}}", "transports.x.tolerance: unknown key 'tolerance'"),
        ("{kind: udp, pacing: shared}", "transports.x.pacing: 'shared' is not .*; did you mean 'share'?"),
        ("{pacing: share}", "transports.x.*: required key 'tolerance' is missing"),
        ("tcp", "transports.x: expected a mapping, not 'tcp'"),
    ],
)
def test_mistakes_are_named_with_their_line(written: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: demo\ntransports:\n  x: {written}\n")
    with pytest.raises(ScenarioError, match=f"mine.yaml:3: {message}"):
        load(path)


@pytest.mark.parametrize("complete", [False, True])
def test_the_json_schema_knows_all_kinds(complete: bool) -> None:
    schema = json_schema(complete)
    (transport,) = schema["properties"]["transports"]["patternProperties"].values()
    assert transport["type"] == "object"
    check = jsonschema.Draft202012Validator(transport | {"$defs": schema["$defs"]}).is_valid
    for text in ("{kind: tcp}", "{kind: udp, pacing: none}", "{kind: gloo}", "{tolerance: {policy: reliable}}"):
        assert check(yaml.safe_load(text)), text
    for text in ("{kind: tpc}", "{kind: tcp, pacing: none}", "{kind: udp, tolerance: {policy: reliable}}", "{p: 1%}"):
        assert not check(yaml.safe_load(text)), text
