"""Written scenarios: they load, what their comments propose is valid, and nothing of the schema is left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scenarios import ScenarioError, catalogue, json_schema, load, template

NAMES = [entry.name for entry in catalogue()]


def written(tmp_path: Path, source: str | Path, change: Any = str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(change(template("mine", source, "mine.yaml", "rules.json")))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_scenario_it_was_made_from(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    assert load(path) == load(name).model_copy(update={"name": "mine"})
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text()))
    assert path.read_text().startswith("# yaml-language-server: $schema=rules.json\n")
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_profiles_come_along(tmp_path: Path) -> None:
    path = written(tmp_path, "efficientnet-microburst")
    assert load(path, "laptop").timeline() == load("efficientnet-microburst", "laptop").timeline()


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_in_comments_can_be_switched_on(name: str, tmp_path: Path) -> None:
    off = written(tmp_path, name).read_text()
    on = re.sub(r"^( *)#(?=[a-z_]+:)", r"\1", off, flags=re.MULTILINE)
    assert len(re.findall(r"^ *#[a-z]", off, re.MULTILINE)) >= 5
    path = written(tmp_path, name, lambda _: on)
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(on))
    plain = load(written(tmp_path, name))
    path.write_text(on)
    assert load(path) == plain, "they stand there with their defaults"


@pytest.mark.parametrize("name", NAMES)
def test_proposals_are_valid_in_the_json_schema(name: str, tmp_path: Path) -> None:
    text = template("mine", name, "mine.yaml", "rules.json")
    schema = json_schema(complete=True)
    definitions = schema["$defs"]
    (transport,) = schema["properties"]["transports"]["patternProperties"].values()
    proposals = [yaml.safe_load(line) for line in re.findall(r"^ *#   (\w+: .*|- \{.*)$", text, re.MULTILINE)]
    assert len(proposals) >= 3
    for proposal in proposals:
        if isinstance(proposal, list):
            jsonschema.Draft202012Validator(json_schema()).validate({"events": proposal})
            continue
        ((key, value),) = proposal.items()
        rules = [model["properties"][key] for model in definitions.values() if key in model.get("properties", {})]
        rules += [transport] if key in load(name).transports else []
        assert any(
            jsonschema.Draft202012Validator(each | {"$defs": definitions}).is_valid(value) for each in rules
        ), proposal


def test_every_key_is_explained_once(tmp_path: Path) -> None:
    text = written(tmp_path, "examples/demo").read_text()
    said = " ".join(line.strip(" #") for line in text.splitlines() if re.match(r" *# ", line))
    schema = json_schema()
    for name in ("Star", "Link", "Workload", "Optimizer", "BoundedLoss", "PhaseAwareTolerance"):
        for key, rules in schema["$defs"][name]["properties"].items():
            assert len(re.findall(rf"^ *#?{key}:", text, re.MULTILINE)) >= 1, key
            if "description" in rules:
                assert said.count(" ".join(rules["description"].split())) >= 1, key
    assert text.count("Rate in bit/s") == 1
    assert "Units: bit, kbit, mbit, gbit." in said
    assert "One of: auto, bridge, ovs." in said
    assert "From 576 to 9216." in said


def test_a_name_that_yaml_takes_for_a_number_stays_a_name(tmp_path: Path) -> None:
    path = tmp_path / "n.yaml"
    path.write_text(template("2026", "examples/demo", "n.yaml", "rules.json"))
    assert load(path).name == "2026"


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("With Space", "examples/demo", "name: 'With Space' should start with a letter or digit"),
        ("x" * 65, "examples/demo", "at most 64 characters"),
        ("mine", "examples/dmeo", "did you mean"),
    ],
)
def test_it_refuses(name: str, source: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        template(name, source, "mine.yaml", "rules.json")


def test_it_refuses_a_broken_source(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("extends: examples/demo\nworkload: {iterations: 0}\n")
    with pytest.raises(ScenarioError, match=r"broken.yaml:2: workload.iterations: "):
        template("mine", tmp_path / "broken.yaml", "mine.yaml", "rules.json")
