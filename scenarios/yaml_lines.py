"""YAML with the line of each value, and without the silent merging of duplicate keys that PyYAML allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scenarios.errors import KeyPath, Problem, ScenarioError


def parse(path: Path, label: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The mapping in a YAML file, and `label:line` of each path in it; the empty path has the bare label.

    Raises ScenarioError for a file that cannot be read, bad syntax, duplicate keys and anything but a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # PyYAML's C loader is not everywhere, and its marks differ; scenario files are small.
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            places: dict[KeyPath, str] = {(): label}
            if root is not None:
                _walk(root, (), label, places, ())
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}" if mark else label
        raise ScenarioError([Problem(where, "", f"not valid YAML: {error.problem or error.context}")]) from error
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ScenarioError([Problem(label, "", f"cannot be read: {error}")]) from error
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise ScenarioError([Problem(label, "", f"expected a mapping (name:, topology:, ...), found {found}")])
    return data, places


def _walk(node: yaml.Node, path: KeyPath, label: str, places: dict[KeyPath, str], above: tuple[int, ...]) -> None:
    if id(node) in above:
        raise yaml.MarkedYAMLError(problem="an alias to a value around itself", problem_mark=node.start_mark)
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key should be a word", problem_mark=key.start_mark)
            if key.value in lines:
                message = f"duplicate key {key.value!r}, first used in line {lines[key.value]}"
                raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
            lines[key.value] = line
            places[*path, key.value] = f"{label}:{line}"
            _walk(value, (*path, key.value), label, places, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[*path, index] = f"{label}:{item.start_mark.line + 1}"
            _walk(item, (*path, index), label, places, above)
