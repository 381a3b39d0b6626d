"""Training time and accuracy as in the paper's Figures 1, 5 and 6, and what an iteration's all-reduce takes."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from analysis import claims, metrics, tables
from analysis.figures import label, latency_scale, legend_below, looks, style, wrapped
from analysis.load import Results

_COLUMNS = 3
"""Panels side by side."""


def training_time(results: Results, table: pd.DataFrame, scenarios: list[str]) -> Figure:
    """Figure 5: training time by scenario, normalised to DBLP, split into computation and communication.

    Only transports with a complete run have a bar; without DBLP's, the first of them is the unit.
    """
    look = looks(results)
    units: list[str] = []
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(max(8, 1.5 * len(scenarios)), 3.9), layout="constrained")
        axes = figure.subplots()
        groups: list[tuple[float, int, str, str]] = []
        shown: dict[str, Patch] = {}
        paper = None
        position = 0.0
        for scenario in scenarios:
            who = metrics.roles(results, scenario)
            names = [name for name in tables.transports(results, scenario)
                     if len(metrics.pick(table, scenario, name, "training_time"))]
            if not names:
                continue
            units.append(look[names[0]]["label"])
            unit = metrics.pick(table, scenario, names[0], "training_time").mean()
            centre = position + (len(names) - 1) / 2
            for name in names:
                parts = [metrics.pick(table, scenario, name, f"{part}_time").mean() / unit
                         for part in ("compute", "communication")]
                total = metrics.pick(table, scenario, name, "training_time").mean() / unit
                colour = look[name]["colour"]
                axes.bar(position, parts[0], 0.8, color=colour, alpha=0.45, lw=0)
                axes.bar(position, parts[1], 0.8, bottom=parts[0], color=colour, lw=0)
                axes.text(position, total + 0.02, f"{total:.2f}", ha="center", va="bottom")
                shown.setdefault(name, Patch(color=colour, label=look[name]["label"]))
                if name == who.get("baseline") and names[0] == who.get("dblp"):
                    expected = claims.paper_value(scenario, "training_time", ratio=["baseline", "dblp"])
                    line = axes.plot([position - 0.42, position + 0.42], [expected] * 2, color="black", lw=2)[0]
                    paper = line if not np.isnan(expected) else paper
                position += 1
            count = len(tables.bursts(results, scenario))
            bursts = f"({count or 'no'} burst{'' if count == 1 else 's'})"
            groups.append((centre, len(names), scenario, bursts))
            position += 0.8
        # A few bars stay as slim as many, in the middle.
        middle, half = (position - 1.8) / 2, max(position + 0.6, 5) / 2
        axes.set_xlim(middle - half, middle + half)
        inches = [(figure.get_figwidth() - 1) * (count + 0.6) / (2 * half) for _, count, *_ in groups]
        axes.set_xticks(
            [x for x, *_ in groups],
            [f"{wrapped(name, width)}\n{bursts}" for (*_, name, bursts), width in zip(groups, inches, strict=True)],
        )
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.12)      # room for the numbers above the bars
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"Training time ({' or '.join(dict.fromkeys(units))} = 1)")
        handles = [*shown.values(), Patch(color="#555555", label="communication"),
                   Patch(color="#555555", alpha=0.45, label="computation")]
        if paper is not None:
            paper.set_label("baseline in the paper")
            handles.append(paper)
        legend_below(figure, handles)
        return figure


def accuracy_by_epoch(results: Results, scenarios: list[str]) -> Figure:
    """Figures 1 and 6: accuracy (or perplexity) on the test set by epoch, a panel a scenario.

    Bands are 95 % intervals over seeds, dotted lines the paper's last values, in the colour of the transport.
    """
    frame = metrics.by_epoch(results)
    look = looks(results)
    with matplotlib.rc_context(style()["rc"]):
        columns = min(max(len(scenarios), 1), _COLUMNS)
        rows = -(-len(scenarios) // columns)
        width = 4.2 if columns > 1 else 5.5
        figure = Figure(figsize=(width * columns, 0.4 + 3.1 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels[len(scenarios):]:
            axes.set_axis_off()
        paper = False
        for axes, scenario in zip(panels, scenarios, strict=False):
            paper |= _learning(axes, results, frame[frame["scenario"] == scenario], scenario, look)
            data = results.runs.loc[results.runs["scenario"] == scenario, "dataset"].dropna().unique()
            axes.set(title=wrapped(f"{scenario} ({', '.join(data)})", width - 0.5), xlabel="Epoch (from 0)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()
                   if not line.get_label().startswith("_")}
        marks = [Line2D([], [], color="#555555", ls=":", label="paper, last epoch")] if paper else []
        legend_below(figure, [*handles.values(), *marks])
        return figure


def _learning(axes: Axes, results: Results, frame: pd.DataFrame, scenario: str, look: dict) -> bool:
    """One panel; returns whether the paper has values for it."""
    paper = False
    role_of = {transport: role for role, transport in metrics.roles(results, scenario).items()}
    metric = "perplexity" if (frame["metric"] == "perplexity").any() else "accuracy"
    for name in tables.transports(results, scenario):
        rows = frame[(frame["transport"] == name) & (frame["metric"] == metric)]
        if not len(rows):
            continue
        found = rows.groupby("epoch")["value"].apply(metrics.estimate)
        mean, half = (np.array([getattr(e, part) for e in found]) for part in ("mean", "half"))
        colour = look[name]["colour"]
        axes.plot(found.index, mean, color=colour, ls=look[name]["line"], marker="o", ms=4, label=look[name]["label"])
        axes.fill_between(found.index, mean - half, mean + half, color=colour, alpha=0.2, lw=0)
        expected = claims.paper_value(scenario, metric, of=role_of.get(name, name))
        if not math.isnan(expected):
            axes.axhline(expected, color=colour, ls=":", lw=1.2)
            paper = True
    if metric == "accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel(f"{metric.capitalize()} on the test set")
    return paper


def communication(results: Results, scenario: str) -> Figure:
    """Time in the all-reduce by iteration (mean over workers), a line a transport.

    Shaded are the iterations that a burst touches with any of them.
    """
    frame = results.iterations[results.iterations["scenario"] == scenario]
    lines = frame.groupby(["transport", "iteration"], as_index=False)["communication_s"].mean()
    look = looks(results)
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 3.5), layout="constrained")
        axes = figure.subplots()
        handles = []
        for name in tables.transports(results, scenario):
            rows = lines[lines["transport"] == name]
            handles += axes.plot(rows["iteration"], rows["communication_s"], color=look[name]["colour"],
                                 ls=look[name]["line"], label=look[name]["label"])
        windows = results.bursts[results.bursts["scenario"] == scenario]
        windows = windows.groupby("burst").agg({"start": "min", "stop": "max"})
        for burst in windows.itertuples():
            mark = axes.axvspan(burst.start - 0.5, burst.stop - 0.5, color=style()["burst"]["colour"], alpha=0.15, lw=0,
                                label="burst")
        handles += [mark] if len(windows) else []
        latency_scale([axes.yaxis], [axes], lines["communication_s"], "y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="Iteration", ylabel="Time in the all-reduce (s)")
        legend_below(figure, handles)
        return figure


def all_reduce(results: Results, table: pd.DataFrame, scenario: str) -> Figure:
    """Time in the all-reduce by transport: median, 99th percentile and at a burst, with speedups over the baseline."""
    look, baseline = looks(results), metrics.roles(results, scenario).get("baseline")
    names = [name for name in tables.transports(results, scenario)
             if len(metrics.pick(table, scenario, name, "communication_median"))]
    shown = [measure for measure in tables.ALL_REDUCE if len(metrics.pick(table, scenario, names[0], measure))]
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(1.2 + 2.8 * len(shown), 3.2), layout="constrained")
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, measure in zip(panels, shown, strict=True):
            for position, name in enumerate(names):
                value = metrics.estimate(metrics.pick(table, scenario, name, measure))
                axes.bar(position, value.mean, 0.8, color=look[name]["colour"], lw=0,
                         yerr=None if math.isnan(value.half) else value.half)
                ratio = tables.speedup(table, scenario, baseline, name, measure).mean if baseline else math.nan
                text = f"{value.mean:.2f}" + ("" if math.isnan(ratio) else f"\n{ratio:.2f} x")
                axes.text(position, value.mean + np.nan_to_num(value.half), text, ha="center", va="bottom", fontsize=9)
            axes.set(title=tables.ALL_REDUCE[measure], xticks=[])
            axes.margins(y=0.2)      # room for the numbers above the bars
            axes.grid(axis="x", visible=False)
        panels[0].set_ylabel("Time in the all-reduce (s)")
        marks = [Patch(color=look[name]["colour"], label=label(results, scenario, name)) for name in names]
        legend_below(figure, marks)
        return figure
