"""The paper's numbers beside the measured ones, with a verdict: reads ``claims.yaml``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis import metrics
from analysis.load import Results

REPRODUCED, DIFFERS, NOT_RUN = "reproduced", "differs", "not run here"


@dataclass(frozen=True)
class Verdict:
    """One claim: the paper's value and the measured one in the claim's unit (shares and points as fractions).

    ``why`` says what the difference comes from, or for ``not run here`` what a verdict needs. ``reasons`` are
    keys of ``reasons`` in claims.yaml. ``half`` is the half-width of the 95 % interval over ``seeds`` seeds.
    """

    id: str
    source: str
    text: str
    unit: str
    compare: str
    paper: float
    measured: float
    half: float
    seeds: int
    verdict: str
    why: str
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"reasons": list(self.reasons)}


@cache
def document() -> dict[str, Any]:
    """The parsed claims.yaml."""
    return yaml.safe_load(Path(__file__).with_name("claims.yaml").read_text())


def paper_value(scenario: str, measure: str, burst: int = 0, **of: Any) -> float:
    """The paper's value for a measure (``of=`` role, ``ratio=`` or ``difference=`` roles); NaN if it has none."""
    for claim in document()["claims"]:
        same = (claim["scenario"], claim["measure"], claim.get("burst", 0)) == (scenario, measure, burst)
        if same and "minus_scenario" not in claim and all(claim.get(k) == v for k, v in of.items()):
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
    }[unit]
    if unit == "share" and 0 < value < 0.01:
        digits = 3
    text = f"{value * factor:+.{digits}f}" if unit == "points" else f"{value * factor:.{digits}f}"
    return text + ("" if math.isnan(half) else f" ± {half * factor:.{digits}f}") + suffix


def evaluate(results: Results, measured: pd.DataFrame | None = None) -> list[Verdict]:
    """A verdict on each claim, from complete runs only; ``measured`` is ``metrics.measures`` of those runs."""
    complete = results.complete()
    table = metrics.measures(complete) if measured is None else measured
    return [_verdict(claim, results, complete, table) for claim in document()["claims"]]


def _verdict(claim: dict[str, Any], results: Results, complete: Results, table: pd.DataFrame) -> Verdict:
    value = metrics.estimate(_values(claim, claim["scenario"], complete, table))
    if not math.isnan(value.mean) and (other := claim.get("minus_scenario")):
        rest = metrics.estimate(_values(claim, other, complete, table))
        # Two scenarios are independent runs: their half-widths add in squares.
        value = metrics.Estimate(value.mean - rest.mean, math.hypot(value.half, rest.half), min(value.n, rest.n))
    compare = claim.get("compare", "within")
    if needs := _needs(claim, results, complete, value.n):
        verdict, why = NOT_RUN, needs
    elif _holds(value.mean, claim["expected"], compare, claim["tolerance"]):
        verdict, why = REPRODUCED, _caveat(claim, complete)
    else:
        verdict, why = DIFFERS, _observed(claim, complete, table)
    return Verdict(
        id=claim["id"], source=claim["source"], text=claim["text"], unit=claim["unit"], compare=compare,
        paper=float(claim["expected"]), measured=value.mean, half=value.half, seeds=value.n, verdict=verdict, why=why,
        reasons=tuple(claim["reasons"]) if verdict == DIFFERS else (),
    )


def _values(claim: dict[str, Any], scenario: str, complete: Results, table: pd.DataFrame) -> pd.Series:
    who = metrics.roles(complete, scenario)
    operation = next(k for k in ("of", "ratio", "difference") if k in claim)
    names = [claim["of"]] if operation == "of" else claim[operation]
    series = [metrics.pick(table, scenario, who.get(n), claim["measure"], claim.get("burst", 0)) for n in names]
    return series[0] if operation == "of" else metrics.paired(*series, operation)


def _holds(value: float, expected: float, compare: str, tolerance: dict[str, float]) -> bool:
    slack = tolerance.get("absolute", abs(expected) * tolerance.get("relative", 0.0)) + 1e-12
    above, below = value <= expected + slack, value >= expected - slack
    return {"within": above and below, "at_most": above, "at_least": below}[compare]


def _needs(claim: dict[str, Any], results: Results, complete: Results, seeds: int) -> str:
    """What a verdict on this claim lacks, or an empty string."""
    for scenario in filter(None, (claim["scenario"], claim.get("minus_scenario"))):
        wanted = [claim["of"]] if "of" in claim else claim.get("ratio") or claim["difference"]
        ran, finished = metrics.roles(results, scenario), metrics.roles(complete, scenario)
        for role in wanted:
            if role not in finished:
                transport = ran.get(role, {"baseline": "mlt"}.get(role, role))
                what = "a complete run" if role in ran else "a run"
                return f"needs {what} of {scenario} with transport {transport}"
        run = next(run for key, run in complete.metadata.items() if key[0] == scenario)
        requires, workload = claim.get("requires", {}), run["scenario"]["workload"]
        needs = []
        if requires.get("dataset", run["dataset"]["name"]) != run["dataset"]["name"]:
            needs.append(f"{requires['dataset']} (this run used {run['dataset']['name']})")
        if requires.get("iterations", workload["iterations"]) != workload["iterations"]:
            needs.append(f"the profile `paper`: {requires['iterations']} iterations (this run had "
                         f"{workload['iterations']})")
        # How well one run learns varies by more than what such a claim is about.
        if seeds < (wanted_seeds := requires.get("seeds", 1)) and seeds:
            needs.append(f"{wanted_seeds} seeds or more (--set seeds=[1,2,3]; these runs had {seeds})")
        if needs:
            return f"needs {' and '.join(needs)}"
    return "" if seeds else "this run did not measure it"


def _observed(claim: dict[str, Any], complete: Results, table: pd.DataFrame) -> str:
    """What these runs say about a difference: passes, the CLR at the burst, the part of computation."""
    scenario, burst = claim["scenario"], claim.get("burst", 0)
    who = metrics.roles(complete, scenario)
    facts = []

    def mean(role: str, measure: str) -> float:
        return metrics.estimate(metrics.pick(table, scenario, who.get(role), measure, burst)).mean

    if burst:
        if inside := mean("dblp", "clr_at_burst"):
            facts.append("DBLP was in its CLR there" + ("" if inside == 1 else f" in {inside:.0%} of the runs"))
        passes = [mean(role, "passes_at_burst") for role in ("baseline", "dblp")]
        if "ratio" in claim and not any(map(math.isnan, passes)):
            facts.append(f"passes {passes[0]:.1f} against {passes[1]:.1f}")
    if claim["measure"] == "training_time":
        facts.append(f"computation took {mean('dblp', 'compute_time') / mean('dblp', 'training_time'):.0%} "
                     "of DBLP's training time")
    return "; ".join(filter(None, (*facts, _caveat(claim, complete))))


def _caveat(claim: dict[str, Any], complete: Results) -> str:
    """An accuracy on other data or after less training than the paper's says less: name both."""
    if claim["measure"] != "accuracy":
        return ""
    run = next(run for key, run in complete.metadata.items() if key[0] == claim["scenario"])
    return f"on {run['dataset']['name']} after {run['scenario']['workload']['iterations']} iterations"
