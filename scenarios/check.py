"""Checks scenario files without running them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from scenarios.errors import Problem, ScenarioError
from scenarios.loader import load, read
from scenarios.schema import Scenario


class Checked(NamedTuple):
    """What a check found: the scenario as loaded, or all that is wrong with it.

    `profiles` are the profiles that were checked with it. With `problems`, `scenario` may be None.
    """

    source: str
    scenario: Scenario | None
    profiles: tuple[str, ...]
    problems: tuple[Problem, ...]


def find(sources: Iterable[str]) -> list[str]:
    """The sources with each folder replaced by the scenario files in it and below it, sorted.

    Hidden folders and files are passed over. Raises ScenarioError for a folder without scenario files.
    """
    found: dict[str, None] = {}
    for source in sources:
        if not (folder := Path(source)).is_dir():
            found[source] = None
            continue
        files = [
            str(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in (".yaml", ".yml")
            and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
        if not files:
            raise ScenarioError([Problem(source, "", "no scenario files (*.yaml, *.yml) in this folder")])
        found.update(dict.fromkeys(files))
    return list(found)


def check(source: str, profile: str | None = None) -> Checked:
    """Load a scenario file, or one of the catalogue: with the profile, or else plain and with each of its profiles.

    What is wrong with one profile only says which.
    """
    try:
        written = read(source).get("profiles") or {}
    except ScenarioError as error:
        return Checked(source, None, (), error.problems)
    names = list(written) if isinstance(written, dict) else []
    if profile is not None:
        names = [profile]
    scenario, problems = None, []
    for name in [profile] if profile is not None else [None, *names]:
        try:
            loaded = load(source, name)
        except ScenarioError as error:
            known = {str(problem) for problem in problems}
            about = f" (with profile {name})" if name is not None and profile is None else ""
            problems += [
                problem._replace(message=problem.message + about)
                for problem in error.problems
                if str(problem) not in known
            ]
        else:
            scenario = scenario or loaded
    return Checked(source, scenario, tuple(map(str, names)), tuple(problems))
