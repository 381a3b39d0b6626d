"""The paper's tables as DataFrames of text: measured values with the paper's beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis import claims, metrics
from analysis.load import Results

MISSING = "-"


def scenarios(results: Results) -> list[str]:
    """Scenarios by name, those with bursts first."""
    calm = set(results.runs["scenario"]) - set(results.bursts["scenario"]) if len(results.bursts) else set()
    return sorted(set(results.runs["scenario"]), key=lambda name: (name in calm, name))


def transports(results: Results, scenario: str) -> list[str]:
    """Transports of a scenario, the paper's DBLP and baseline first, the others by name."""
    who = metrics.roles(results, scenario)
    first = [who[role] for role in ("dblp", "baseline") if role in who]
    return first + sorted(set(results.runs.loc[results.runs["scenario"] == scenario, "transport"]) - set(first))


def heading(results: Results, scenario: str, transport: str) -> str:
    """The transport's name; says so where only an incomplete run of it exists."""
    runs = results.runs[(results.runs["scenario"] == scenario) & (results.runs["transport"] == transport)]
    return transport if runs["complete"].any() else f"{transport} (incomplete)"


def bursts(results: Results, scenario: str) -> pd.DataFrame:
    """The burst windows of a scenario, one row each (the same for all its runs)."""
    rows = results.bursts[results.bursts["scenario"] == scenario]
    return rows.drop_duplicates("burst").sort_values("burst")


def what(burst: Any) -> str:
    """`70% loss`, or the action."""
    return f"{burst.loss:.0%} loss" if burst.action == "loss" else burst.action.replace("_", " ")


def window(burst: Any) -> str:
    """Iterations of a window in words: ``48`` or ``48 to 52``."""
    return str(burst.start) if burst.stop - burst.start == 1 else f"{burst.start} to {burst.stop - 1}"


def latency(results: Results, table: pd.DataFrame, scenario: str) -> pd.DataFrame:
    """Table II: send latency at each burst, tail and average, with speedups over the baseline.

    Two rows more than the paper's: the 99th percentile of the samples and the median without burst and CLR.
    """
    lines = [(f"Burst {b.burst} (iteration {window(b)})", "latency_burst", b.burst)
             for b in bursts(results, scenario).itertuples()]
    lines += [("Tail (largest)", "latency_tail", 0), ("Average", "latency_average", 0),
              ("99th percentile", "latency_p99", 0), ("Median, no burst, outside CLR", "latency_median_calm", 0)]
    who = metrics.roles(results, scenario)
    role_of = {transport: role for role, transport in who.items()}
    names, baseline = transports(results, scenario), who.get("baseline")
    rows = []
    for text, measure, burst in lines:
        row = {"Send latency": text}
        for name in names:
            value = metrics.estimate(metrics.pick(table, scenario, name, measure, burst))
            row[heading(results, scenario, name)] = claims.show(value.mean, "s", value.half)
            paper = claims.paper_value(scenario, measure, burst, of=role_of.get(name, name))
            row[f"{name}, paper"] = claims.show(paper, "s")
        for name in names:
            if baseline and name != baseline:
                both = [metrics.pick(table, scenario, t, measure, burst) for t in (baseline, name)]
                value = metrics.estimate(metrics.paired(*both))
                row[f"speedup of {name}"] = claims.show(value.mean, "times", value.half)
                paper = claims.paper_value(scenario, measure, burst, ratio=["baseline", role_of.get(name, name)])
                row[f"speedup of {name}, paper"] = claims.show(paper, "times")
        rows.append(row)
    return _without_empty(pd.DataFrame(rows))


def accuracy(results: Results, table: pd.DataFrame) -> pd.DataFrame:
    """Tables IV and VI: accuracy on the test set after the last epoch of each scenario and transport."""
    rows = []
    for scenario in scenarios(results):
        role_of = {transport: role for role, transport in metrics.roles(results, scenario).items()}
        for name in transports(results, scenario):
            value = metrics.estimate(metrics.pick(table, scenario, name, "accuracy"))
            paper = claims.paper_value(scenario, "accuracy", of=role_of.get(name, name))
            runs = results.runs[(results.runs["scenario"] == scenario) & (results.runs["transport"] == name)]
            rows.append({
                "Scenario": scenario, "Transport": heading(results, scenario, name),
                "Accuracy": claims.show(value.mean, "share", value.half), "Seeds": str(value.n),
                "Data set": ", ".join(sorted(set(runs["dataset"].dropna()))),
                "Paper (CIFAR-10)": claims.show(paper, "share"),
            })
    return _without_empty(pd.DataFrame(rows))


def training_time(results: Results, table: pd.DataFrame) -> pd.DataFrame:
    """Table V: training time, its two parts, and its ratio to DBLP's (to the first transport's without one)."""
    rows = []
    for scenario in scenarios(results):
        who, names = metrics.roles(results, scenario), transports(results, scenario)
        role_of = {transport: role for role, transport in who.items()}
        for name in names:
            row = {"Scenario": scenario, "Transport": heading(results, scenario, name)}
            for part in ("training", "compute", "communication"):
                value = metrics.estimate(metrics.pick(table, scenario, name, f"{part}_time"))
                row[f"{part.capitalize()} (s)"] = MISSING if math.isnan(value.mean) else f"{value.mean:.1f}"
            for part in ("training", "communication"):
                both = [metrics.pick(table, scenario, t, f"{part}_time") for t in (name, names[0])]
                ratio = metrics.estimate(metrics.paired(*both))
                row[f"{part.capitalize()}, {names[0]} = 1"] = claims.show(ratio.mean, "times", ratio.half)
            paper = claims.paper_value(scenario, "training_time", ratio=[role_of.get(name, name), "dblp"])
            row["Training, paper"] = claims.show(1.0 if name == who.get("dblp") else paper, "times")
            rows.append(row)
    return _without_empty(pd.DataFrame(rows))


def missing(results: Results) -> pd.DataFrame:
    """What share of the model's frames never arrived, by direction and CLR, beside the tolerance in force."""
    frame = metrics.missing_share(results)
    return pd.DataFrame({
        "Scenario": frame["scenario"], "Transport": frame["transport"], "Direction": frame["direction"],
        "In CLR": frame["in_clr"].map({True: "yes", False: "no"}), "Rounds": frame["rounds"].astype(str),
        "Tolerance": frame["tolerance"].map("{:.2%}".format), "Missing, mean": frame["mean"].map("{:.2%}".format),
        "Missing, largest": frame["largest"].map("{:.2%}".format),
        "Rounds above tolerance": frame["exceeded"].astype(str),
    })


def setup(results: Results) -> pd.DataFrame:
    """The paper's set-up beside that of each scenario here."""
    frame = pd.DataFrame([{"Setting": line["item"], "Paper": line["paper"]} for line in claims.document()["setup"]])
    return frame.assign(**{scenario: _here(results, scenario) for scenario in scenarios(results)})


def _here(results: Results, scenario: str) -> list[str]:
    """The lines of ``setup`` in claims.yaml for one scenario, from its first run."""
    runs = {key: run for key, run in results.metadata.items() if key[0] == scenario}
    run = next(iter(runs.values()))
    tolerances = run["scenario"].get("transports", {})
    who = {role: tolerances.get(name, {}).get("tolerance") for role, name in metrics.roles(results, scenario).items()}
    windows = [f"{what(b)} in iteration {window(b)}" for b in bursts(results, scenario).itertuples()]
    rate = run["scenario"].get("topology", {}).get("link", {}).get("rate")
    fields = run | who | {"bursts": "; ".join(windows) or "none", "rate": f"{rate / 1e6:g} Mbit/s" if rate else MISSING}
    here = []
    for line in claims.document()["setup"]:
        try:
            here.append(line["here"].format(**fields))
        except (KeyError, TypeError):  # this run has no such field or role
            here.append(MISSING)
    return here


def verdicts(found: Iterable[claims.Verdict], notes: list[str]) -> pd.DataFrame:
    """The verdict table; ``notes`` gives the numbering of the reasons."""
    sign = {"within": "", "at_most": "at most ", "at_least": "at least "}
    rows = []
    for v in found:
        refer = ", ".join(f"note {notes.index(reason) + 1}" for reason in v.reasons)
        measured = claims.show(v.measured, v.unit, v.half)
        rows.append({
            "Claim": f"{v.text} ({v.source})",
            "Paper": ("" if v.unit == "yes" else sign[v.compare]) + claims.show(v.paper, v.unit),
            "Measured": measured, "Verdict": v.verdict, "Why": "; ".join(filter(None, (v.why, refer))),
        })
    return pd.DataFrame(rows)


def _without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop columns in which nothing is known, as the paper's for a scenario that it does not have."""
    keep = [column for column in frame if not (frame[column] == MISSING).all() or "paper" not in column.lower()]
    return frame[keep]
