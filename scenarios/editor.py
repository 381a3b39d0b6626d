"""JSON Schema of scenario files, for completion and checks while typing."""

from __future__ import annotations

from typing import Any

from scenarios.schema import Scenario


def json_schema() -> dict[str, Any]:
    """The schema of a scenario file as it is written, with `extends` and `profiles`.

    Since a file may leave to another what it does not change, keys are required only in entries of lists; `load`
    checks that nothing is missing in the end.
    """
    scenario = Scenario.model_json_schema()
    definitions = scenario.pop("$defs")
    for name in _mapping_definitions(definitions):
        definitions[name].pop("required", None)
    tolerance = definitions["Transport"]["properties"]["tolerance"]
    tolerance["anyOf"] = tolerance.pop("oneOf")  # without required keys, several policies may match
    del tolerance["discriminator"]
    settings = {key: value for key, value in scenario["properties"].items() if key != "profile"}
    definitions["Profile"] = {
        "type": "object",
        "description": "Changes to the scenario, merged over it key by key.",
        "properties": settings,
        "additionalProperties": False,
    }
    file_keys = {
        "extends": {"type": "string", "description": "Another scenario, by path or name, that this one changes."},
        "profiles": {
            "type": "object",
            "description": "Named variants of the scenario, such as a short run for a laptop.",
            "additionalProperties": {"$ref": "#/$defs/Profile"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DBLP testbed scenario",
        "type": "object",
        "properties": file_keys | settings,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _mapping_definitions(definitions: dict[str, Any]) -> list[str]:
    """All definitions but those of events, which stand in a list and so are never merged."""
    return [name for name in definitions if name != "Event" and not name.startswith("At")]
