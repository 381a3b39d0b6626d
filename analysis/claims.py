"""The paper's numbers beside the measured ones, with a verdict: reads ``claims.yaml``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import scenarios
from analysis import metrics
from analysis.load import Results

REPRODUCED, DIFFERS, NOT_RUN = "reproduced", "differs", "not run here"
_REGIMES = {"polling": "polling", "microburst": "plain"}
"""By the end of a scenario's name: the paper's regime, where passes cost time, and the other."""


@dataclass(frozen=True)
class Verdict:
    """One claim in one scenario: the paper's value and the measured one in the claim's unit (shares as fractions).

    ``why`` says what the difference comes from, or for ``not run here`` what a verdict needs. ``depends`` are
    keys of ``depends`` in claims.yaml. ``half`` is the half-width of the 95 % interval over ``seeds`` seeds.
    ``runs`` are the folders that show it, ``command`` is what makes them.
    """

    id: str
    source: str
    text: str
    scenario: str
    unit: str
    compare: str
    paper: float
    measured: float
    half: float
    seeds: int
    verdict: str
    why: str
    depends: tuple[str, ...]
    runs: tuple[str, ...]
    command: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; null for what is not known."""
        values = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}
        return values | {"depends": list(self.depends), "runs": list(self.runs)}


@cache
def document() -> dict[str, Any]:
    """The parsed claims.yaml."""
    return yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text())


@cache
def claims() -> tuple[dict[str, Any], ...]:
    """Every claim of the groups in each of its scenarios, with ``id``, ``scenario``, and the regime in ``text``."""
    return tuple(claim for group in document()["groups"] for claim in _expanded(group))


def _expanded(group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for own in group["claims"]:
        merged = {k: v for k, v in (group | own).items() if k not in ("claims", "scenarios") and v is not None}
        names = own.get("scenarios", group["scenarios"])
        for name in names:
            regime = _REGIMES.get(name.rpartition("-")[2], name)
            text = merged["text"] + (f" ({regime})" if len(names) > 1 else "")
            yield {"compare": "within"} | merged | {"scenario": name, "id": f"{name}/{own['id']}", "text": text}


def paper_value(scenario: str, measure: str, burst: int = 0, **of: Any) -> float:
    """The paper's value for a measure (``of=`` role, ``ratio=`` or ``difference=`` roles); NaN if it has none."""
    for claim in claims():
        same = (claim["scenario"], claim["measure"], claim.get("burst", 0)) == (scenario, measure, burst)
        single = "minus_scenario" not in claim and "over" not in claim
        if same and single and all(claim.get(k) == v for k, v in of.items()):
            return claim["expected"]
    return math.nan


def show(value: float, unit: str, half: float = math.nan) -> str:
    """A value in its unit, with the half-width of its interval where there is one."""
    if math.isnan(value):
        return "-"
    if unit == "yes":
        return {0.0: "no", 1.0: "yes"}.get(value, f"in {value:.0%} of runs")
    factor, digits, suffix = {
        "s": (1, 3, " s"), "times": (1, 2, " x"), "share": (100, 2, "%"), "points": (100, 2, " points"),
        "millions": (1, 1, " M"), "number": (1, 0 if float(value).is_integer() else 4, ""),
    }[unit]
    if unit == "share" and 0 < value < 0.01:
        digits = 3
    if unit == "points" and value == 0:
        return "0 points"
    text = f"{value * factor:+.{digits}f}" if unit == "points" else f"{value * factor:.{digits}f}"
    if unit == "number" and digits:
        text = text.rstrip("0")
    return text + (f" ± {half * factor:.{digits}f}" if half > 0 else "") + suffix


def evaluate(results: Results, measured: pd.DataFrame | None = None) -> list[Verdict]:
    """A verdict on each claim, from complete runs only; ``measured`` is ``metrics.measures`` of those runs."""
    complete = results.complete()
    evidence = _Evidence(results, complete, metrics.measures(complete) if measured is None else measured)
    return [_verdict(claim, evidence) for claim in claims()]


def count(found: list[Verdict]) -> dict[str, int]:
    """How many verdicts there are of each kind."""
    return {kind: sum(v.verdict == kind for v in found) for kind in (REPRODUCED, DIFFERS, NOT_RUN)}


class _Evidence:
    """What verdicts rest on: all runs, the complete ones, and the measures of those."""

    def __init__(self, results: Results, complete: Results, table: pd.DataFrame) -> None:
        self.complete = complete
        self._ran, self._finished = ({scenario: set(rows) for scenario, rows in r.runs.groupby("scenario")["transport"]}
                                     for r in (results, complete))
        self._roles = {scenario: metrics.roles(results, scenario) for scenario in self._ran}
        self._values = {key: rows.set_index("seed")["value"]
                        for key, rows in table.groupby(["scenario", "transport", "measure", "burst"])}

    def transport(self, scenario: str, name: str) -> str:
        """The transport that has a role, or that name."""
        return self._roles.get(scenario, {}).get(name, {"baseline": "mlt"}.get(name, name))

    def lacks(self, scenario: str, transport: str) -> str:
        """What a transport's run lacks: nothing, completeness, or all."""
        if transport in self._finished.get(scenario, ()):
            return ""
        return "a complete run" if transport in self._ran.get(scenario, ()) else "a run"

    def values(self, scenario: str, name: str, measure: str, burst: int) -> pd.Series:
        """A measure of a role or transport, over seeds."""
        key = (scenario, self.transport(scenario, name), measure, burst)
        return self._values.get(key, pd.Series(dtype=float))

    def mean(self, scenario: str, name: str, measure: str, burst: int = 0) -> float:
        """The same, averaged; NaN where there is none."""
        return metrics.estimate(self.values(scenario, name, measure, burst)).mean

    def run(self, scenario: str) -> dict[str, Any]:
        """run.json of the first complete run of a scenario."""
        return next(run for key, run in self.complete.metadata.items() if key[0] == scenario)


def _verdict(claim: dict[str, Any], evidence: _Evidence) -> Verdict:
    value = _measured(claim, evidence)
    if needs := _needs(claim, evidence, value.n):
        verdict, why = NOT_RUN, needs
    elif _holds(value.mean, claim["expected"], claim["compare"], claim["tolerance"]):
        verdict, why = REPRODUCED, _caveat(claim, evidence)
    else:
        verdict, why = DIFFERS, _observed(claim, evidence)
    return Verdict(
        id=claim["id"], source=claim["source"], text=claim["text"], scenario=claim["scenario"], unit=claim["unit"],
        compare=claim["compare"], paper=float(claim["expected"]), measured=value.mean, half=value.half, seeds=value.n,
        verdict=verdict, why=why, depends=tuple(claim["depends"]), runs=_runs(claim, evidence),
        command=_command(claim, evidence),
    )


def _scenarios(claim: dict[str, Any]) -> list[str]:
    """All scenarios that the value is made of."""
    return claim.get("over") or [claim["scenario"], *filter(None, [claim.get("minus_scenario")])]


def _names(claim: dict[str, Any]) -> list[str]:
    """The roles or transports that the value is made of."""
    return [claim["of"]] if "of" in claim else claim.get("ratio") or claim["difference"]


def _measured(claim: dict[str, Any], evidence: _Evidence) -> metrics.Estimate:
    each = [metrics.estimate(_values(claim, scenario, evidence)) for scenario in _scenarios(claim)]
    seeds = min(e.n for e in each)
    if not seeds:
        return metrics.Estimate(math.nan, math.nan, 0)
    if claim.get("take") == "max":
        return max(each, key=lambda e: e.mean)
    # Scenarios are independent runs: half-widths add in squares.
    half = math.hypot(*(e.half for e in each))
    if claim.get("take") == "mean":
        return metrics.Estimate(sum(e.mean for e in each) / len(each), half / len(each), seeds)
    return metrics.Estimate(each[0].mean - sum(e.mean for e in each[1:]), half, seeds)


def _values(claim: dict[str, Any], scenario: str, evidence: _Evidence) -> pd.Series:
    series = [evidence.values(scenario, name, claim["measure"], claim.get("burst", 0)) for name in _names(claim)]
    return series[0] if "of" in claim else metrics.paired(*series, "ratio" if "ratio" in claim else "difference")


def _holds(value: float, expected: float, compare: str, tolerance: dict[str, float]) -> bool:
    slack = tolerance.get("absolute", abs(expected) * tolerance.get("relative", 0.0)) + 1e-12
    above, below = value <= expected + slack, value >= expected - slack
    return {"within": above and below, "at_most": above, "at_least": below}[compare]


def _needs(claim: dict[str, Any], evidence: _Evidence, seeds: int) -> str:
    """What a verdict on this claim lacks, or an empty string."""
    for scenario in _scenarios(claim):
        for name in _names(claim):
            transport = evidence.transport(scenario, name)
            if lacks := evidence.lacks(scenario, transport):
                return f"needs {lacks} of {scenario} with transport {transport}"
        if needs := _lacking(claim.get("requires", {}), evidence.run(scenario), seeds):
            return f"needs {' and '.join(needs)}"
    return "" if seeds else "this run did not measure it"


def _lacking(requires: dict[str, Any], run: dict[str, Any], seeds: int) -> list[str]:
    workload, data = run["scenario"]["workload"], (run.get("dataset") or {}).get("name")
    needs = []
    if requires.get("dataset", data) != data:
        needs.append(f"{requires['dataset']} (this run used {data})")
    if requires.get("iterations", workload["iterations"]) != workload["iterations"]:
        needs.append(f"the profile `paper`: {requires['iterations']} iterations (this run had "
                     f"{workload['iterations']})")
    if requires.get("profile", profile := run["scenario"].get("profile")) != profile:
        needs.append(f"the profile `{requires['profile']}`")
    if seeds < (wanted := requires.get("seeds", 1)) and seeds:
        needs.append(f"{wanted} seeds or more (--set seeds=[1,2,3]; these runs had {seeds})")
    return needs


def _observed(claim: dict[str, Any], evidence: _Evidence) -> str:
    """What these runs say about a difference: passes, the CLR at the burst, the part of computation."""
    scenario, burst = claim["scenario"], claim.get("burst", 0)
    facts = []
    if burst and claim["measure"] in ("latency_burst", "spike"):
        if (inside := evidence.mean(scenario, "dblp", "clr_at_burst", burst)) > 0:
            facts.append("DBLP was in its CLR there" + ("" if inside == 1 else f" in {inside:.0%} of the runs"))
        passes = [evidence.mean(scenario, role, "passes_at_burst", burst) for role in ("baseline", "dblp")]
        if "ratio" in claim and not any(map(math.isnan, passes)):
            facts.append(f"passes {passes[0]:.1f} against {passes[1]:.1f}")
    if claim["measure"] == "training_time" and "over" not in claim:
        compute, total = (evidence.mean(scenario, "dblp", measure) for measure in ("compute_time", "training_time"))
        facts.append(f"computation took {compute / total:.0%} of DBLP's training time")
    return "; ".join(filter(None, (*facts, _caveat(claim, evidence))))


def _caveat(claim: dict[str, Any], evidence: _Evidence) -> str:
    """An accuracy on other data or after less training than the paper's says less: name both."""
    if claim["measure"] not in ("accuracy", "perplexity"):
        return ""
    run = evidence.run(claim["scenario"])
    return f"on {run['dataset']['name']} after {run['scenario']['workload']['iterations']} iterations"


def _runs(claim: dict[str, Any], evidence: _Evidence) -> tuple[str, ...]:
    """Folders of the complete runs that the value is made of."""
    folders: list[str] = []
    runs = evidence.complete.runs
    for scenario in _scenarios(claim):
        wanted = {evidence.transport(scenario, name) for name in _names(claim)}
        folders += map(str, runs.loc[(runs["scenario"] == scenario) & runs["transport"].isin(wanted), "path"])
    return tuple(folders)


def _command(claim: dict[str, Any], evidence: _Evidence) -> str:
    """What makes the runs of a claim: as they were made, else with the profile that the claim requires."""
    names = _scenarios(claim)
    made = {run["scenario"].get("profile") for key, run in evidence.complete.metadata.items() if key[0] in names}
    profile = next(iter(made), None) or claim.get("requires", {}).get("profile", "laptop")
    return f"dblp run {' '.join(_catalogue().get(name, f'paper/{name}') for name in names)} --profile {profile}"


@cache
def _catalogue() -> dict[str, str]:
    """Full name of each scenario of the catalogue by its last part."""
    return {entry.path.stem: entry.name for entry in scenarios.catalogue()}
