"""JSON Schema of scenario files, for completion and checks while typing."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from scenarios.events import Event
from scenarios.schema import Scenario
from scenarios.units import quantity_of


def json_schema(complete: bool = False) -> dict[str, Any]:
    """The schema of a scenario file as it is written, with `extends` and `profiles`.

    Since a file may leave to another what it does not change, keys are required only in entries of lists; `load`
    checks that nothing is missing in the end. With `complete`, it is the schema of a file that extends nothing: it
    has all required keys, but does not look into profiles. Defaults are written as a file writes them, with their unit.
    """
    scenario = Scenario.model_json_schema()
    definitions = scenario.pop("$defs")
    for model in (scenario, *definitions.values()):
        named = list(model.get("properties", {}).values())
        free = [rules for key in named for rules in key.get("patternProperties", {}).values()]
        for key in named + free:
            if (quantity := quantity_of(key)) and key.get("default") is not None:
                key["default"] = quantity.write(key["default"])
            branches = key.get("anyOf", key.get("oneOf", ()))
            if branches and all("$ref" in branch for branch in branches):
                key["type"] = "object"  # all models are; editors then begin a mapping after the key
            if "discriminator" in key and not complete:
                key["anyOf"] = key.pop("oneOf")  # without required keys, several may match
                del key["discriminator"]
    if not complete:
        in_lists = TypeAdapter(Event).json_schema()["$defs"]  # events are never merged
        for name in definitions.keys() - in_lists.keys():
            definitions[name].pop("required", None)
    scenario["properties"]["transports"]["additionalProperties"] = False  # pydantic leaves other names open
    settings = {key: value for key, value in scenario["properties"].items() if key != "profile"}
    definitions["Profile"] = {
        "type": "object",
        "description": "Changes to the scenario, merged over it key by key.",
        "properties": settings,
        "additionalProperties": False,
    }
    extends = {"type": "string", "description": "Another scenario, by path or name, that this one changes."}
    profiles = {
        "type": "object",
        "description": "Named variants of the scenario, such as a short run for a laptop; each is merged over it.",
        "additionalProperties": {"type": "object"} if complete else {"$ref": "#/$defs/Profile"},
        "examples": [{"short": {"workload": {"batch_size": 4}}}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DBLP testbed scenario",
        "type": "object",
        "properties": {"extends": extends, **settings, "profiles": profiles},
        "additionalProperties": False,
        "$defs": definitions,
    } | ({"required": scenario["required"]} if complete else {})
