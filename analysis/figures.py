"""The paper's figures: functions from tables to matplotlib Figures, styled by ``style.yaml``."""

from __future__ import annotations

import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from analysis import claims, metrics, tables
from analysis.load import Results

_LOG_FROM = 3.0
"""Latencies spread by more than this factor (largest over median) are drawn on a logarithmic scale."""

_CHARACTER_IN = 0.085
"""Width of a character at the size of titles and legends, in inches."""


@cache
def style() -> dict[str, Any]:
    """The parsed style.yaml."""
    return yaml.safe_load(Path(__file__).with_name("style.yaml").read_text())


def looks(results: Results) -> dict[str, dict[str, str]]:
    """Label, colour and line of each transport, the same in every figure of a report."""
    known, others = style()["transports"], style()["others"]
    unknown = sorted(set(results.runs["transport"]) - set(known))
    drawn = {name: {"label": name} | others[i % len(others)] for i, name in enumerate(unknown)}
    return known | drawn


def latency_by_iteration(results: Results, scenario: str) -> Figure:
    """Figure 2: send latency of each iteration (mean over workers), a panel a transport, bursts and CLR marked.

    With several seeds the first is drawn in full and the others faintly; the CLR is shaded as deep as the
    share of seeds in it.
    """
    lines = metrics.by_iteration(metrics.samples(results))
    lines = lines[lines["scenario"] == scenario]
    names = [n for n in reversed(tables.transports(results, scenario)) if n in set(lines["transport"])]
    look, windows = looks(results), tables.bursts(results, scenario)
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 1.1 + 2.1 * len(names)), layout="constrained")
        panels = figure.subplots(len(names), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        shaded = False
        for axes, name, letter in zip(panels, names, "abcdefghijklmnopqrstuvwxyz", strict=False):
            rows = lines[lines["transport"] == name]
            for i, (_, line) in enumerate(rows.groupby("seed")):
                axes.plot(line["iteration"], line["latency_s"], color=look[name]["colour"],
                          lw=1.1, alpha=1 if i == 0 else 0.3)
            clr = rows.groupby("iteration")["in_clr"].mean()
            shaded |= _shade(axes, clr)
            _mark_bursts(axes, rows, windows)
            axes.set_title(f"({letter}) {_label(results, scenario, name)}" + _seeds(rows))
            axes.set_xlim(-0.5, lines["iteration"].max() + 0.5)
        latency_scale([axes.yaxis for axes in panels], panels, lines["latency_s"], "y")
        panels[-1].set_xlabel("Iteration")
        figure.supylabel("Send latency, mean over workers (s)", fontsize=10)
        handles: list[Any] = []
        if len(windows):
            handles.append(Line2D([], [], ls="", marker="v", color=style()["burst"]["colour"], label="burst"))
        if shaded:
            handles.append(Patch(color=style()["clr"]["colour"], alpha=style()["clr"]["alpha"], label="in the CLR"))
        if handles:
            figure.legend(handles=handles, loc="outside upper right", ncols=2)
        return figure


def _label(results: Results, scenario: str, name: str) -> str:
    return tables.heading(results, scenario, name).replace(name, looks(results)[name]["label"], 1)


def _seeds(rows: pd.DataFrame) -> str:
    count = rows["seed"].nunique()
    return f", {count} seeds" if count > 1 else ""


def _shade(axes: Axes, clr: pd.Series) -> bool:
    """Shade the iterations in the CLR; returns whether there was any."""
    for _, run in clr.groupby((clr.diff() != 0).cumsum()):
        if run.iloc[0] > 0:
            axes.axvspan(run.index[0] - 0.5, run.index[-1] + 0.5, lw=0, zorder=0, color=style()["clr"]["colour"],
                         alpha=run.iloc[0] * style()["clr"]["alpha"])
    return bool((clr > 0).any())


def _mark_bursts(axes: Axes, rows: pd.DataFrame, windows: pd.DataFrame) -> None:
    """A dot on each burst with its latency, and a triangle above the panel."""
    colour = style()["burst"]["colour"]
    for burst in windows.itertuples():
        inside = rows[rows["iteration"].between(burst.start, burst.stop - 1)]
        if not len(inside):
            continue
        latency = inside["latency_s"].mean()
        middle = (burst.start + burst.stop - 1) / 2
        axes.plot(middle, 1, marker="v", ms=6, color=colour, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.plot(inside["iteration"], inside["latency_s"], ls="", marker="o", ms=3.5, color=colour)
        axes.annotate(f"burst {burst.burst}: {latency:.2f} s", (middle, latency), xytext=(7, 2),
                      textcoords="offset points", fontsize=9, color=colour)


def latency_scale(ticks: list[Any], panels: Any, values: pd.Series, which: str) -> None:
    """Logarithmic where the largest latency is far above the median, with ticks in plain seconds."""
    log = values.max() > _LOG_FROM * values.median()
    for axis, axes in zip(ticks, panels, strict=True):
        if log:
            getattr(axes, f"set_{which}scale")("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
            low, high = values.min() / 1.25, values.max() * 1.4
        else:
            low, high = 0, values.max() * 1.15
        getattr(axes, f"set_{which}lim")(low, high)


def latency_cdf(results: Results, scenario: str) -> Figure:
    """Figure 3: distribution of send latency over workers, iterations and seeds; at the right its tail.

    The right panel shows the share of samples above a latency on a logarithmic scale, where a burst of one
    iteration in a thousand is still visible.
    """
    rows = metrics.samples(results)
    rows = rows[rows["scenario"] == scenario]
    look = looks(results)
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for name in tables.transports(results, scenario):
            values = np.sort(rows.loc[rows["transport"] == name, "latency_s"].to_numpy())
            if not len(values):
                continue
            kwargs = {"color": look[name]["colour"], "ls": look[name]["line"], "lw": 1.8,
                      "label": _label(results, scenario, name)}
            left.ecdf(values, **kwargs)
            right.step(values, 1 - np.arange(len(values)) / len(values), where="pre", **kwargs)
        latency_scale([left.xaxis, right.xaxis], (left, right), rows["latency_s"], "x")
        left.set_ylim(0, 1.02)
        right.set_yscale("log")
        left.set(title="Distribution", xlabel="Send latency (s)", ylabel="Share of samples at or below")
        right.set(title="Its tail", xlabel="Send latency (s)", ylabel="Share of samples at or above")
        legend_below(figure, left.get_legend_handles_labels()[0])
        return figure


def legend_below(figure: Figure, handles: list[Any]) -> None:
    """A legend that hides no curve, in as many columns as its longest name leaves room for; the figure grows by it."""
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    width, height = figure.get_size_inches()
    columns = max(1, min(int(width / (_CHARACTER_IN * longest + 0.6)), len(handles)))
    figure.set_figheight(height + 0.2 * -(-len(handles) // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _wrapped(name: str, inches: float) -> str:
    """A long name in several lines, broken at its hyphens where it has some."""
    return textwrap.fill(name, max(int(inches / _CHARACTER_IN), 8))


def training_time(results: Results, table: pd.DataFrame) -> Figure:
    """Figure 5: training time by scenario, normalised to DBLP, split into computation and communication.

    Only transports with a complete run have a bar; without DBLP's, the first of them is the unit.
    """
    look = looks(results)
    units: list[str] = []
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 3.9), layout="constrained")
        axes = figure.subplots()
        groups: list[tuple[float, int, str, str]] = []
        shown: dict[str, Patch] = {}
        paper = None
        position = 0.0
        for scenario in tables.scenarios(results):
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
        inches = [7 * (count + 0.6) / (2 * half) for _, count, *_ in groups]
        axes.set_xticks(
            [x for x, *_ in groups],
            [f"{_wrapped(name, width)}\n{bursts}" for (*_, name, bursts), width in zip(groups, inches, strict=True)],
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


def accuracy_by_epoch(results: Results) -> Figure:
    """Figure 6a: accuracy on the test set by epoch, a panel a scenario; bands are 95 % intervals over seeds."""
    frame = metrics.accuracy_by_epoch(results)
    scenarios = tables.scenarios(results)
    look = looks(results)
    with matplotlib.rc_context(style()["rc"]):
        width = 4.2 if len(scenarios) > 1 else 5.5
        figure = Figure(figsize=(width * max(len(scenarios), 1), 3.5), layout="constrained")
        panels = figure.subplots(1, len(scenarios), sharey=True, squeeze=False)[0]
        for axes, scenario in zip(panels, scenarios, strict=True):
            for name in tables.transports(results, scenario):
                rows = frame[(frame["scenario"] == scenario) & (frame["transport"] == name)]
                if not len(rows):
                    continue
                found = rows.groupby("epoch")["accuracy"].apply(metrics.estimate)
                mean = np.array([e.mean for e in found])
                half = np.array([e.half for e in found])
                axes.plot(found.index, mean, color=look[name]["colour"], ls=look[name]["line"], marker="o", ms=4,
                          label=look[name]["label"])
                axes.fill_between(found.index, mean - half, mean + half, color=look[name]["colour"], alpha=0.2, lw=0)
            data = results.runs.loc[results.runs["scenario"] == scenario, "dataset"].dropna().unique()
            title = _wrapped(f"{scenario} ({', '.join(data)})", width - 0.5)
            axes.set(title=title, xlabel="Epoch (from 0)")
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        panels[0].set_ylabel("Accuracy on the test set")
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        legend_below(figure, list(handles.values()))
        return figure
