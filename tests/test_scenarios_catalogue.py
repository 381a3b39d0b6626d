"""The scenarios that come with the testbed, and the JSON Schema that editors check them with."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from scenarios import Window, catalogue, json_schema, load, read

ENTRIES = {entry.name: entry for entry in catalogue()}
PROFILES = ["paper", "laptop", "smoke"]


def check(document: Any) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_loads_by_both_names_and_passes_the_json_schema(name: str) -> None:
    scenario = load(name)
    assert scenario == load(scenario.name), "its file should have the name of the scenario"
    assert ENTRIES[name].description == scenario.description != ""
    check(yaml.safe_load(ENTRIES[name].path.read_text()))


@pytest.mark.parametrize("name", [name for name in ENTRIES if name.startswith("paper/")])
@pytest.mark.parametrize("profile", PROFILES)
def test_paper_scenarios_have_all_profiles(name: str, profile: str) -> None:
    workload = load(name, profile).workload
    assert workload.iterations % workload.iterations_per_epoch == 0, "the last epoch would have no evaluation"


def test_microburst_is_the_experiment_of_the_paper() -> None:
    scenario = load("efficientnet-microburst")
    assert scenario == load("efficientnet-microburst", "paper").model_copy(update={"profile": None})
    assert scenario.timeline() == [Window(0, 279, 280), Window(1, 651, 652)]
    assert {event.loss for event in scenario.events} == {0.7}
    dblp, mlt = (scenario.transports[name].tolerance for name in ("dblp", "mlt"))
    assert (dblp.low, dblp.high, dblp.eta, mlt.p) == (0.008, 0.408, 0.5, 0.008)  # Table I


@pytest.mark.parametrize("profile", PROFILES)
def test_bursts_hit_the_first_iteration_of_the_same_epochs_in_long_runs(profile: str) -> None:
    scenario = load("efficientnet-microburst", profile)
    per_epoch = scenario.workload.iterations_per_epoch
    places = [divmod(window.start, per_epoch) for window in scenario.timeline()]
    # smoke has 2 epochs, so it keeps only the place within the run.
    assert places == ([(0, 3), (1, 2)] if profile == "smoke" else [(3, 0), (7, 0)])


@pytest.mark.parametrize("name", [name for name in ENTRIES if name.endswith("-polling")])
def test_polling_scenarios_differ_from_the_plain_ones_in_their_senders_only(name: str) -> None:
    polling, plain = load(name), load(name.replace("-polling", "-microburst"))
    for transport in polling.transports.values():
        assert (transport.sender.poll_every, transport.sender.poll_wait, transport.pacing.mode) == (100, 0.001, "none")
    settings = {"sender": None, "pacing": plain.transports["dblp"].pacing}
    same = {key: transport.model_copy(update=settings) for key, transport in polling.transports.items()}
    about = {"name": plain.name, "description": plain.description}
    assert polling.model_copy(update={"transports": same} | about) == plain
    short = load(name, "laptop")
    for window, moved in zip(polling.timeline(), short.timeline(), strict=True):
        place = window.start / polling.workload.iterations
        assert moved.start / short.workload.iterations == pytest.approx(place, abs=0.5 / short.workload.iterations)


@pytest.mark.parametrize(
    "document",
    [
        {"topolgy": {}},
        {"topology": {"link": {"rate": 1000}}},
        {"topology": {"link": {"rate": "1gbps"}}},
        {"transports": {"mlt": {"tolerance": {"policy": "fixed", "low": "1%"}}}},
        {"transports": {"mlt": {"pacing": "shared"}}},
        {"events": [{"action": "loss", "loss": "7%", "at": {"tiem": "3s"}, "duration": "1 iteration"}]},
        {"events": [{"action": "loss"}]},
        {"profiles": {"laptop": {"extends": "x.yaml"}}},
        {"profile": "laptop"},
        {"name": "With Spaces"},
        {"transports": {"MLT": {"tolerance": {"policy": "fixed", "p": "1%"}}}},
        {"transports": {"mlt": {"tolerance": {"policy": "fixed", "p": 0.8}}}},
        {"workload": {"iterations": "16"}},
        {"workload": {"model": "resnet"}},
        {"topology": {"link": {"latency": "5 sec"}}},
        {"events": {"action": "loss"}},
        {"events": [{"action": "loss", "loss": "7%", "at": {"iteration": 3}, "duration": 1}]},
        {"seeds": 1},
    ],
)
def test_json_schema_refuses(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(document)


def test_json_schema_is_valid_and_describes_every_key() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for model in (schema, *schema["$defs"].values()):
        for name, key in model.get("properties", {}).items():
            assert "description" in key or "$ref" in key, name


@pytest.mark.parametrize("complete", [False, True])
def test_what_the_json_schema_proposes_is_valid_in_it(complete: bool) -> None:
    """Editors insert defaults and examples: 0.0 for a latency would be an error, `0ms` is none."""
    schema = json_schema(complete)
    jsonschema.Draft202012Validator.check_schema(schema)

    def validate(value: Any, rules: dict[str, Any]) -> None:
        jsonschema.Draft202012Validator(rules | {"$defs": schema["$defs"]}).validate(value)

    proposed = 0
    for model in (schema, *schema["$defs"].values()):
        for rules in model.get("properties", {}).values():
            for place in (rules, *rules.get("anyOf", ())):
                for value in [*place.get("examples", ()), *([place["default"]] if "default" in place else [])]:
                    validate(value, place)
                    proposed += 1
    assert proposed > 20
    assert schema["$defs"]["Link"]["properties"]["latency"]["default"] == "0ms"


@pytest.mark.parametrize("name", ENTRIES)
def test_the_complete_json_schema_asks_for_all_that_loading_does(name: str) -> None:
    document = read(name)
    validator = jsonschema.Draft202012Validator(json_schema(complete=True))
    assert validator.is_valid(document)
    for key in ("name", "topology", "workload", "transports"):
        assert not validator.is_valid({other: value for other, value in document.items() if other != key})
