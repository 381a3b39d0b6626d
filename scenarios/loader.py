"""From a scenario file to a `Scenario`: extends, profiles, --set, and errors that name file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from scenarios.errors import KeyPath, Problem, ScenarioError, did_you_mean, dotted, explain, unknown
from scenarios.schema import Scenario
from scenarios.transports import DEFAULT_KIND
from scenarios.units import Seconds, duration
from scenarios.yaml_lines import parse

_CATALOGUE = Path(__file__).parent


class CatalogueEntry(NamedTuple):
    """A scenario that comes with the testbed; `load` takes its name with or without the folder."""

    name: str
    path: Path
    description: str


def catalogue() -> list[CatalogueEntry]:
    """The scenarios in the folders beside this file, sorted by name."""
    return [
        CatalogueEntry(name, path, _read(path).data.get("description", "")) for name, path in _catalogue_paths().items()
    ]


def read(source: str | Path) -> dict[str, Any]:
    """A scenario as it is written, with what it extends merged below it and nothing else checked.

    Raises ScenarioError for a file that is not there or not YAML.
    """
    return _read(_locate(str(source), Path())).data


def load(source: str | Path, profile: str | None = None, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario file, or a scenario of the catalogue by name.

    `extends: other.yaml` (relative to the file, or a name of the catalogue) and then the profile are merged key by
    key; values that are not mappings, lists too, replace the ones below, and so do a transport of another kind and a
    tolerance of another policy.
    Where a profile changes `workload.iterations`, `at.iteration`, `at.every` and `at.start` of the events keep their
    relative place, unless the profile brings its own events. Each override is `dotted.key=value` with the value in
    YAML and list indices as numbers (`events.0.loss=50%`), and is applied last, as it stands.

    Raises ScenarioError with all that was found wrong.
    """
    document = _read(_locate(str(source), Path()))
    changes = document.profile(profile) if profile is not None else None
    document.data.pop("profiles", None)
    if changes is not None:
        document = _with_profile(document, changes)
    for override in overrides:
        document = _with_override(document, override)
    if misplaced := [key for key in ("profile", *Scenario.FILE_KEYS) if key in document.data]:
        raise ScenarioError([_misplaced(document, key) for key in misplaced])
    try:
        return Scenario.model_validate({**document.data, "profile": profile})
    except ValidationError as error:
        raise ScenarioError(explain(error, document.data, document.where)) from error


@dataclass(frozen=True)
class _Document:
    """Plain data with the place (`file:line` or `--set` argument) of each path in it."""

    data: dict[str, Any]
    places: dict[KeyPath, str]

    def where(self, path: KeyPath) -> str:
        """Place of the path, or of the nearest mapping or list around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def profile(self, name: str) -> _Document:
        """The changes of a profile. Raises ScenarioError if there is none of that name."""
        profiles = self.data.get("profiles", {})
        path = ("profiles", name)
        if not isinstance(profiles, dict):
            raise self.error(path[:1], f"expected a mapping of names to changes, not {profiles!r}")
        if name not in profiles:
            raise self.error(path[:1], unknown("profile", name, profiles))
        if not isinstance(profiles[name], dict):
            raise self.error(path, "expected a mapping of changes; {} changes nothing")
        places = {place[2:]: line for place, line in self.places.items() if place[:2] == path}
        return _Document(profiles[name], places)

    def under(self, top: _Document) -> _Document:
        """This document with another merged over it."""
        return _Document(_merge(self.data, top.data), self.places | top.places)

    def error(self, path: KeyPath, message: str) -> ScenarioError:
        return ScenarioError([Problem(self.where(path), dotted(path), message)])


def _catalogue_paths() -> dict[str, Path]:
    paths = sorted(_CATALOGUE.glob("*/*.yaml"))
    return {f"{path.parent.name}/{path.stem}": path for path in paths}


def _locate(source: str, folder: Path) -> Path:
    """The file of a source; relative paths start at `folder`. Raises ScenarioError if there is none."""
    path = folder / source
    if path.is_file():
        return path
    names = {spelling: path for name, path in _catalogue_paths().items() for spelling in (name, path.stem)}
    if source in names:
        return names[source]
    hint = did_you_mean(Path(source).stem, names) or "; `dblp scenarios` lists the catalogue"
    what = "no such file" if path.suffix in (".yaml", ".yml") else "no such file or scenario of the catalogue"
    raise ScenarioError([Problem(str(path), "", what + hint)])


def _read(path: Path, children: tuple[Path, ...] = ()) -> _Document:
    """A file with what it extends merged below it. `children` are the files that led here by `extends`."""
    label = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    document = _Document(*parse(path, label))
    extends = document.data.pop("extends", None)
    if extends is None:
        return document
    if not isinstance(extends, str):
        raise document.error(("extends",), f"expected the name of one scenario file, not {extends!r}")
    try:
        base = _locate(extends, path.parent)
    except ScenarioError as error:
        raise document.error(("extends",), error.problems[0].message + f" ({extends!r})") from error
    chain = (*children, path)
    if any(base.samefile(seen) for seen in chain):
        cycle = " -> ".join(step.name for step in (*chain, base))
        raise document.error(("extends",), f"a file cannot extend itself: {cycle}")
    return _read(base, chain).under(document)


def _merge(below: Any, above: Any, path: KeyPath = ()) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    # Keys of one tolerance policy, or of one kind of transport, mean nothing to another.
    tag, usual = ("kind", DEFAULT_KIND) if path[-2:-1] == ("transports",) else ("policy", None)
    if tag in above and above[tag] != below.get(tag, usual):
        return above
    return below | {key: _merge(below.get(key), value, (*path, key)) for key, value in above.items()}


def _with_profile(document: _Document, changes: _Document) -> _Document:
    merged = document.under(changes)
    before, after = _iterations(document.data), _iterations(merged.data)
    events = merged.data.get("events")
    if before and after and before != after and isinstance(events, list) and "events" not in changes.data:
        merged.data["events"] = [_moved(event, before, after) for event in events]
    return merged


def _iterations(data: dict[str, Any]) -> int | None:
    workload = data.get("workload")
    iterations = workload.get("iterations") if isinstance(workload, dict) else None
    return iterations if isinstance(iterations, int) and iterations > 0 else None


def _moved(event: Any, before: int, after: int) -> Any:
    """The event at the same relative place of a run of another length. What is invalid stays as it is."""
    try:
        at, span = dict(event["at"]), duration(event.get("duration", "1 iteration"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return event
    length = 1 if isinstance(span, Seconds) else span
    for key in ("iteration", "start", "every"):
        value = at.get(key)
        if not isinstance(value, int):
            continue
        at[key] = (2 * value * after + before) // (2 * before)
        if key == "every":
            at[key] = max(at[key], length)
        elif value + length <= before:  # what fitted before should not fall off the end by rounding
            at[key] = max(min(at[key], after - length), 0)
    return {**event, "at": at}


def _with_override(document: _Document, override: str) -> _Document:
    place = f"--set {override}"
    dotted_key, equals, text = override.partition("=")
    path: KeyPath = tuple(int(part) if part.isdecimal() else part for part in dotted_key.strip().split("."))
    if not equals or "" in path:
        raise ScenarioError([Problem(place, "", "write dotted.key=value, such as workload.iterations=20")])
    if path[0] in Scenario.FILE_KEYS:
        raise ScenarioError([Problem(place, "", f"{path[0]!r} cannot be set; change the scenario file")])
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError([Problem(place, "", f"the value {text!r} is not valid YAML")]) from error
    places = {known: line for known, line in document.places.items() if known[: len(path)] != path}
    try:
        return _Document(_replaced(document.data, path, value), {**places, path: place})
    except LookupError as error:
        raise ScenarioError([Problem(place, "", error.args[0])]) from error


def _replaced(node: Any, path: KeyPath, value: Any, above: KeyPath = ()) -> Any:
    """A copy of the node with the value at the path. Raises LookupError, with the message, where there is no such
    place; optional sections that the file left out are begun."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(node, list):
        if key not in range(len(node)):
            count = f"{dotted(above)} has {len(node)} {'entry' if len(node) == 1 else 'entries'}, counted from 0"
            raise LookupError(f"no entry {key} in {dotted(above)}; {count}")
        copy: Any = list(node)
        inner = node[int(key)]
    elif isinstance(node, dict):
        if above == ("transports",) and rest and key not in node:
            raise LookupError(unknown("transport", key, node))
        copy = dict(node)
        inner = node.get(key, {})
    else:
        raise LookupError(f"{dotted(above)} is {node!r}, which has no {key!r}")
    copy[key] = _replaced(inner, rest, value, (*above, key))
    return copy


def _misplaced(document: _Document, key: str) -> Problem:
    path = (key,)
    message = (
        unknown("key", key, Scenario.keys())
        if key == "profile"
        else "a profile cannot have this; it belongs at the top of the file"
    )
    return Problem(document.where(path), key, message)
