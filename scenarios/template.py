"""A commented scenario file to start from, made of a scenario and the descriptions of the JSON Schema.

All that the comments say (descriptions, units, alternatives, defaults) is read from the schema, and what is proposed in
them is an example or a default of it, so they say what `load` takes. The schema is walked generically: keywords that
`scenarios.editor.json_schema` does not use are not known here.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from scenarios.editor import json_schema
from scenarios.errors import ScenarioError, explain
from scenarios.loader import load, read
from scenarios.schema import Name
from scenarios.units import quantity_of

_WIDTH = 110
_TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}

Schema = dict[str, Any]

_HEAD = """\
# yaml-language-server: $schema={schema}
#
# Made from {source}. Check it with `dblp check {file}`, run it with `dblp run {file}`.
# Quantities carry their unit, counts are bare numbers. Optional keys that are not used stand as `#key: value`, without
# a space after the #, mostly with their default: remove the # to change them. Each key is explained once.
"""


def template(name: str, source: str | Path, file: str, schema: str) -> str:
    """The text of a scenario `name` with what stands in `source` (a file, or a name of the catalogue).

    `file` and `schema` are the paths that the head of the text names: of the file itself, and of the JSON Schema as
    seen from it. Raises ScenarioError if the source is not a valid scenario, or the name is none.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise ScenarioError(explain(error, name, lambda _: "name")) from error
    resolved = load(source).model_dump(mode="json")
    document = {key: value for key, value in read(source).items() if key != "extends"} | {"name": name}
    rules = json_schema(complete=True)
    profiles = document.pop("profiles", None)
    explained = rules["properties"].pop("profiles")
    del rules["properties"]["extends"]
    writer = _Writer(rules)
    lines = writer.mapping("", rules, document, resolved)
    lines += writer.explanation("profiles", explained, profiles)
    lines += _block({"profiles": profiles}) if profiles else [f"#profiles: {_flow(writer.example(explained))}"]
    return _HEAD.format(schema=schema, source=source, file=file) + "\n".join(_spaced(lines)) + "\n"


class _Writer:
    """Writes values with comments; remembers what it has explained."""

    def __init__(self, root: Schema) -> None:
        self._definitions = root["$defs"]
        self._told: set[object] = set()

    def mapping(self, owner: str, schema: Schema, value: dict[str, Any], resolved: Any) -> list[str]:
        """The keys of a mapping, in the order of the schema; `owner` tells which definition the schema is.

        `resolved` is the mapping as loaded, which has the defaults that follow from other keys.
        """
        lines: list[str] = []
        properties = _properties(schema)
        for key, rules in properties.items():
            first = self._once((owner, key))
            if first:
                lines += self.explanation(key, rules, value.get(key))
            if key in value:
                lines += self._entry(key, rules, value[key], _inner(resolved, key))
            elif first:
                follows = "default" not in rules and isinstance(resolved, dict) and key in resolved
                lines.append(f"#{key}: {_flow(resolved[key] if follows else self.example(rules))}")
        free = next(iter(schema.get("patternProperties", {}).values()), {})
        for key in value:
            if key not in properties:
                lines += self.explanation(key, free, value[key], others=self._once((owner, "free")))
                lines += self._entry(key, free, value[key], _inner(resolved, key))
        return lines

    def explanation(self, key: str, rules: Schema, value: Any, others: bool = True) -> list[str]:
        """Comment lines: what the key means, its units and values, and other ways to write it than this value."""
        chosen = self._branch(rules, self.example(rules) if value is None else value)
        about = [rules.get("description", "")]
        if self._once(chosen.get("title")):
            about.append(chosen.get("description", ""))
        about += _values(chosen)
        if value is not None and rules.get("default"):
            about.append(f"Default: {_flow(rules['default'])}.")
        lines = _comment(" ".join(dict.fromkeys(filter(None, about))))
        if others:
            rest = [(f"{key}: ", branch) for branch in self._branches(rules) if branch is not chosen]
            lines += self._proposals("Or:", rest)
        if "items" in chosen:
            used = [self._branch(chosen["items"], item) for item in value or ()]
            entries = [branch for branch in self._branches(chosen["items"]) if branch.get("type") == "object"]
            lines += self._proposals("Entries can be:", [("- ", entry) for entry in entries if entry not in used])
        return lines

    def _proposals(self, head: str, proposals: list[tuple[str, Schema]]) -> list[str]:
        """Other ways to write a key or an entry, each with what it means; none where the schema has no example."""
        examples = [(start, branch, self.example(branch)) for start, branch in proposals]
        examples = [one for one in examples if one[-1] is not None]
        lines = [f"# {head}"] if examples else []
        for start, branch, example in examples:
            text = start + _flow(example)
            about = branch.get("description", "")
            if about and len(text) + len(about) < _WIDTH - 10:
                lines.append(f"#   {text}  # {about}")
            else:
                lines += [f"#   {line}" for line in _comment(about)] + [f"#   {text}"]
        return lines

    def example(self, rules: Schema) -> Any:
        """A value that the schema allows: its default or its first example where it has one. None if none is known."""
        if "default" in rules:
            return rules["default"]
        schema = self._branches(rules)[0]
        for source in (rules, schema):
            if "examples" in source:
                return source["examples"][0]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        match schema.get("type"):
            case "object":
                required = schema.get("required", ())
                inner = {key: self.example(rules) for key, rules in _properties(schema).items() if key in required}
                return None if None in inner.values() else inner
            case "array":
                entry = self.example(schema["items"])
                return None if entry is None else [entry]
            case "integer" | "number":
                return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            case "boolean":
                return False
        return None

    def _entry(self, key: str, rules: Schema, value: Any, resolved: Any) -> list[str]:
        schema = self._branch(rules, value)
        if isinstance(value, dict) and value:
            return [f"{_flow(key)}:", *_indented(self.mapping(schema.get("title", key), schema, value, resolved))]
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            entries = [
                self._item(schema.get("items", {}), item, _inner(resolved, place)) for place, item in enumerate(value)
            ]
            return [f"{key}:", *(line for entry in entries for line in entry)]
        return [f"{key}: {_flow(value)}"]

    def _item(self, rules: Schema, value: dict[str, Any], resolved: Any) -> list[str]:
        schema = self._branch(rules, value)
        lines = self.mapping(schema.get("title", ""), schema, value, resolved)
        first = next(place for place, line in enumerate(lines) if not line.startswith("#"))
        about = _comment(schema.get("description", "")) if self._once(schema.get("title")) else []
        return [
            *_indented([*about, *lines[:first]]),
            f"  - {lines[first]}",
            *_indented(lines[first + 1 :], 4),
        ]

    def _once(self, thing: object) -> bool:
        first = thing not in self._told
        self._told.add(thing)
        return first

    def _branches(self, rules: Schema) -> list[Schema]:
        """The alternatives of a schema, without references to definitions; null is none of them."""
        rules = self._resolved(rules)
        alternatives = rules.get("anyOf") or rules.get("oneOf") or ()
        inner = [branch for one in alternatives if one.get("type") != "null" for branch in self._branches(one)]
        return inner or [rules]

    def _branch(self, rules: Schema, value: Any) -> Schema:
        """The alternative that the value is written by."""
        branches = self._branches(rules)
        return next((branch for branch in branches if self._fits(branch, value)), branches[0])

    def _fits(self, rules: Schema, value: Any) -> bool:
        if "const" in rules or "enum" in rules:
            return value in rules.get("enum", [rules.get("const")])
        if not isinstance(value, _TYPES.get(rules.get("type", ""), object)):
            return False
        if isinstance(value, str):
            return re.search(rules.get("pattern", ""), value) is not None
        if isinstance(value, dict) and "properties" in rules:
            # Only what tells alternatives apart: the keys, and the values of fixed ones such as `policy`.
            properties = rules["properties"]
            fixed = [key for key in value if key in properties and properties[key].keys() & {"const", "enum"}]
            return set(rules.get("required", ())) <= set(value) <= set(properties) and all(
                self._fits(properties[key], value[key]) for key in fixed
            )
        return True

    def _resolved(self, rules: Schema) -> Schema:
        if "$ref" not in rules:
            return rules
        return self._definitions[rules["$ref"].rpartition("/")[2]]


def _inner(resolved: Any, key: str | int) -> Any:
    """What stands at a key or index of plain data, None if nothing does."""
    if isinstance(resolved, list):
        return resolved[key] if key in range(len(resolved)) else None
    return resolved.get(key) if isinstance(resolved, dict) else None


def _properties(schema: Schema) -> dict[str, Schema]:
    """The keys of a mapping, the ones that tell it from others (`action: loss`) first."""
    return dict(sorted(schema.get("properties", {}).items(), key=lambda item: "const" not in item[1]))


def _values(schema: Schema) -> list[str]:
    """What a value may be, in words."""
    if quantity := quantity_of(schema):
        return [f"Units: {', '.join(quantity.units)}."]
    if "enum" in schema:
        return [f"One of: {', '.join(map(str, schema['enum']))}."]
    if schema.get("type") == "boolean":
        return ["true or false."]
    if "minimum" in schema and "maximum" in schema:
        return [f"From {schema['minimum']} to {schema['maximum']}."]
    return []


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDTH - 2, break_on_hyphens=False)]


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _block(value: Any) -> list[str]:
    return yaml.safe_dump(value, sort_keys=False, width=_WIDTH, allow_unicode=True).splitlines()


def _indented(lines: list[str], by: int = 2) -> list[str]:
    return [" " * by + line for line in lines]


def _spaced(lines: list[str]) -> list[str]:
    """A blank line before each explained key at the top."""
    return [
        text
        for before, line in zip(["", *lines], lines, strict=False)
        for text in ([""] if line.startswith("# ") and not before.startswith("# ") else [])
        + [line]
    ]
