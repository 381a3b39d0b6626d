"""The paper's set-up beside that of the runs, and what a profile leaves smaller than the paper had it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pandas as pd

import scenarios
from analysis import claims, metrics, tables
from analysis.load import Results


def setup(results: Results) -> pd.DataFrame:
    """A row a scenario, under the paper's."""
    lines = claims.document()["setup"]
    rows = [{"Scenario": "(the paper)"} | {line["item"]: line["paper"] for line in lines}]
    rows += [{"Scenario": scenario} | _here(results, scenario) for scenario in tables.scenarios(results)]
    return pd.DataFrame(rows)


def _here(results: Results, scenario: str) -> dict[str, str]:
    """The lines of ``setup`` in claims.yaml for one scenario, from its first run."""
    run = _first(results, scenario)
    who = {role: metrics.tolerance_of(run, name) for role, name in metrics.roles(results, scenario).items()}
    bursts = tables.bursts(results, scenario).itertuples()
    windows = [f"{tables.what(burst)} in iteration {tables.window(burst)}" for burst in bursts]
    rate = run["scenario"].get("topology", {}).get("link", {}).get("rate")
    fields = run | who | {"bursts": "; ".join(windows) or "none", "rate": _rate(rate) if rate else tables.MISSING}
    here = {}
    for line in claims.document()["setup"]:
        try:
            here[line["item"]] = line["here"].format(**fields)
        except (KeyError, TypeError):  # this run has no such field or role
            here[line["item"]] = tables.MISSING
    return here


def _first(results: Results, scenario: str) -> dict[str, Any]:
    return next(run for key, run in results.metadata.items() if key[0] == scenario)


def _rate(rate: float) -> str:
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def differences(results: Results, names: Iterable[str]) -> list[str]:
    """A line a scenario that says where its runs differ from the paper's sizes, if those are known and differ."""
    lines = []
    for name in names:
        run, paper = _first(results, name), _of_the_paper(name)
        if paper is None:
            continue
        here, data = run["scenario"], run.get("dataset") or {}
        said = []
        for field, what in (("iterations", "iterations"), ("batch_size", "samples a worker and iteration"),
                            ("image_size", "pixels an image"),
                            ("context", "tokens a sequence"), ("eval_samples", "test samples")):
            value, theirs = here["workload"].get(field), getattr(paper.workload, field, None)
            if value is not None and value != theirs:
                said.append(f"{value:,} {what} instead of {f'{theirs:,}' if theirs else 'all'}")
        rate, theirs = here.get("topology", {}).get("link", {}).get("rate"), _link_rate(paper)
        if rate and rate != theirs:
            said.append(f"links of {_rate(rate)}" + (f" instead of {_rate(theirs)}" if theirs else ""))
        if data.get("stands_in_for"):
            said.append(f"{data['name']} for {data['stands_in_for']}")
        if said:
            profile = f" (profile `{here['profile']}`)" if here.get("profile") else ""
            lines.append(f"{name}{profile}: {'; '.join(said)}.")
    return lines


def _link_rate(scenario: scenarios.Scenario) -> float | None:
    return getattr(getattr(scenario.topology, "link", None), "rate", None)


@cache
def _of_the_paper(name: str) -> scenarios.Scenario | None:
    """The catalogue's scenario of this name in the sizes of the paper, if there is one."""
    known = {entry.path.stem: entry.name for entry in scenarios.catalogue()}
    if not known.get(name, "").startswith("paper/"):
        return None
    try:
        return scenarios.load(known[name], "paper")
    except scenarios.ScenarioError:
        return None
