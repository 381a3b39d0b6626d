"""Scenarios that compare variants of one setting, as their transports: accuracy against what it costs."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis import claims, metrics, tables
from analysis.figures import legend_below, looks, style
from analysis.load import Results

ABLATION = "ablation"
SENSITIVITY = "sensitivity-"
_COLUMNS = {
    "Models sent": ("bytes_sent", "times"), "Send latency": ("latency_average", "s"),
    "In the CLR": ("clr_share", "share"), "Replica drift": ("replica_drift", "share"),
}


def is_study(scenario: str) -> bool:
    """Whether a scenario's transports are variants of one setting."""
    return scenario == ABLATION or scenario.startswith(SENSITIVITY)


def metric_of(table: pd.DataFrame, scenario: str) -> str:
    """Perplexity where it was measured, else accuracy."""
    return "perplexity" if ((table["scenario"] == scenario) & (table["measure"] == "perplexity")).any() else "accuracy"


def variants(results: Results, table: pd.DataFrame, scenario: str) -> pd.DataFrame:
    """Accuracy, bytes, latency, share of the CLR and replica drift of each variant; means and 95 % intervals."""
    metric = metric_of(table, scenario)
    columns = {metric.capitalize(): (metric, "share" if metric == "accuracy" else "number")} | _COLUMNS
    rows = []
    for name in tables.transports(results, scenario):
        row = {"Variant": tables.heading(results, scenario, name)}
        for column, (measure, unit) in columns.items():
            value = metrics.estimate(metrics.pick(table, scenario, name, measure))
            row[column] = claims.show(value.mean, unit, value.half)
        rows.append(row | {"Seeds": str(len(metrics.pick(table, scenario, name, metric)))})
    return pd.DataFrame(rows)


def trade_off(results: Results, table: pd.DataFrame, scenario: str) -> Figure:
    """Accuracy over bytes, left, and over send latency, right; crosses are 95 % intervals over seeds."""
    look, metric = looks(results), metric_of(table, scenario)
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        handles = {}
        for name in tables.transports(results, scenario):
            y = metrics.estimate(metrics.pick(table, scenario, name, metric))
            for axes, measure in zip(panels, ("bytes_sent", "latency_average"), strict=True):
                x = metrics.estimate(metrics.pick(table, scenario, name, measure))
                if x.n and y.n:
                    handles[name] = axes.errorbar(
                        x.mean, y.mean, xerr=np.nan_to_num(x.half), yerr=np.nan_to_num(y.half), marker="o", ms=7,
                        ls="", capsize=2, lw=1, color=look[name]["colour"], label=look[name]["label"])
        panels[0].set(xlabel="Models sent by a worker in an iteration", ylabel=f"{metric.capitalize()} on the test set")
        panels[1].set(xlabel="Send latency, average (s)")
        if metric == "accuracy":
            panels[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        legend_below(figure, list(handles.values()))
        return figure
