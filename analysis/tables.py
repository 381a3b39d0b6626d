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
    """Scenarios in the order of the paper, then others by name, those with bursts first."""
    order = claims.document()["order"]
    calm = set(results.runs["scenario"]) - set(results.bursts["scenario"]) if len(results.bursts) else set()
    return sorted(set(results.runs["scenario"]),
                  key=lambda name: (order.index(name) if name in order else len(order), name in calm, name))


def transports(results: Results, scenario: str) -> list[str]:
    """Transports of a scenario, the paper's DBLP and baseline first, the others by name."""
    who = metrics.roles(results, scenario)
    first = [who[role] for role in ("dblp", "baseline") if role in who]
    return first + sorted(set(results.runs.loc[results.runs["scenario"] == scenario, "transport"]) - set(first))


def heading(results: Results, scenario: str, transport: str) -> str:
    """The transport's name; says so where only an incomplete run of it exists."""
    runs = results.runs[(results.runs["scenario"] == scenario) & (results.runs["transport"] == transport)]
    return transport if runs["complete"].any() else f"{transport} (incomplete)"


def bursts(results: Results, scenario: str, transport: str | None = None) -> pd.DataFrame:
    """The burst windows of a scenario, one row each: the same for all its runs, unless a burst lasts a time.

    Then how many iterations it touches is the transport's; without one, the first run's windows are returned.
    """
    rows = results.bursts[results.bursts["scenario"] == scenario]
    rows = rows if transport is None else rows[rows["transport"] == transport]
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
    timed = set(table.loc[(table["scenario"] == scenario) & (table["measure"] == "latency_average"), "transport"])
    names, baseline = [n for n in transports(results, scenario) if n in timed], who.get("baseline")
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


def accuracy(results: Results, table: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Tables IV and VI: accuracy (or perplexity) on the test set after the last epoch, beside the replicas' drift."""
    rows = []
    for scenario in names:
        role_of = {transport: role for role, transport in metrics.roles(results, scenario).items()}
        for name in transports(results, scenario):
            metric = "perplexity" if len(metrics.pick(table, scenario, name, "perplexity")) else "accuracy"
            unit = "share" if metric == "accuracy" else "number"
            value = metrics.estimate(metrics.pick(table, scenario, name, metric))
            drift = metrics.estimate(metrics.pick(table, scenario, name, "replica_drift"))
            paper = claims.paper_value(scenario, metric, of=role_of.get(name, name))
            runs = results.runs[(results.runs["scenario"] == scenario) & (results.runs["transport"] == name)]
            rows.append({
                "Scenario": scenario, "Transport": heading(results, scenario, name), "Metric": metric,
                "Measured": claims.show(value.mean, unit, value.half), "Paper": claims.show(paper, unit),
                "Replica drift": claims.show(drift.mean, "share", drift.half), "Seeds": str(value.n),
                "Data set": ", ".join(sorted(set(runs["dataset"].dropna()))),
            })
    return _without_empty(pd.DataFrame(rows))


ALL_REDUCE = {
    "communication_median": "Median", "communication_p99": "99th percentile", "communication_at_bursts": "At a burst",
}
"""Measures of the time in the all-reduce, with how they are called."""


def communication(results: Results, table: pd.DataFrame, scenario: str) -> pd.DataFrame:
    """What an all-reduce takes with each transport, its speedup over the baseline, and what is trained with it."""
    baseline = metrics.roles(results, scenario).get("baseline")

    def show(name: str, measure: str, unit: str) -> str:
        value = metrics.estimate(metrics.pick(table, scenario, name, measure))
        return claims.show(value.mean, unit, value.half)

    rows = []
    for name in transports(results, scenario):
        row = {"Transport": heading(results, scenario, name)}
        for measure, text in ALL_REDUCE.items():
            row[text] = show(name, measure, "s")
            if baseline:
                value = speedup(table, scenario, baseline, name, measure)
                row[f"{text}, speedup over {baseline}"] = claims.show(value.mean, "times", value.half)
        row["What a burst costs"] = show(name, "burst_cost", "s")
        row |= {"Accuracy": show(name, "accuracy", "share"), "Replica drift": show(name, "replica_drift", "share")}
        rows.append(row | {"Seeds": str(len(metrics.pick(table, scenario, name, "communication_median")))})
    return pd.DataFrame(rows)


def speedup(table: pd.DataFrame, scenario: str, baseline: str, name: str, measure: str) -> metrics.Estimate:
    """How many times less a transport has of a measure than the baseline, seed by seed."""
    both = [metrics.pick(table, scenario, transport, measure) for transport in (baseline, name)]
    return metrics.estimate(metrics.paired(*both))


def training_time(results: Results, table: pd.DataFrame, of: Iterable[str]) -> pd.DataFrame:
    """Table V: training time, its two parts, and its ratio to DBLP's (to the first transport's without one)."""
    rows = []
    for scenario in of:
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
    bounded = frame["bounded"]
    return pd.DataFrame({
        "Scenario": frame["scenario"], "Transport": frame["transport"], "Direction": frame["direction"],
        "In CLR": frame["in_clr"].map({True: "yes", False: "no"}), "Rounds": frame["rounds"].astype(str),
        "Tolerance": frame["tolerance"].map("{:.2%}".format).where(bounded, "none"),
        "Missing, mean": frame["mean"].map("{:.2%}".format),
        "Missing, largest": frame["largest"].map("{:.2%}".format),
        "Rounds above tolerance": frame["exceeded"].astype(str).where(bounded, MISSING),
    })


def predictions(frame: pd.DataFrame) -> pd.DataFrame:
    """``regimes.predictions`` as text: theory beside measurement."""
    return pd.DataFrame({
        "Scenario": frame["scenario"], "Where": frame["where"], "Transport": frame["transport"],
        "p": frame["tolerance"].map("{:.1%}".format), "q": frame["loss"].map("{:.0%}".format),
        "Passes, theory": frame["passes_predicted"].map("{:.2f}".format),
        "Passes": frame["passes"].map("{:.2f}".format),
        "Frames / model, theory": frame["frames_predicted"].map("{:.3f}".format),
        "Frames / model": frame["frames"].map("{:.3f}".format),
        "Samples": frame["samples"].astype(str), "Within 10 %": frame["holds"],
    })


def _without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop columns in which nothing is known, as the paper's for a scenario that it does not have."""
    keep = [column for column in frame if not (frame[column] == MISSING).all() or "paper" not in column.lower()]
    return frame[keep]
