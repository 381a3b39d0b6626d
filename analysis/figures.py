"""Send latency as in the paper's Figures 2 to 4, and what all figures share; styled by ``style.yaml``."""

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
from matplotlib.ticker import FuncFormatter, LogLocator

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
    role_of = {transport: role for role, transport in metrics.roles(results, scenario).items()}
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(8, 1.1 + 2.1 * len(names)), layout="constrained")
        panels = figure.subplots(len(names), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        shaded = paper = False
        for axes, name, letter in zip(panels, names, "abcdefghijklmnopqrstuvwxyz", strict=False):
            rows = lines[lines["transport"] == name]
            for i, (_, line) in enumerate(rows.groupby("seed")):
                axes.plot(line["iteration"], line["latency_s"], color=look[name]["colour"],
                          lw=1.1, alpha=1 if i == 0 else 0.3)
            clr = rows.groupby("iteration")["in_clr"].mean()
            shaded |= _shade(axes, clr)
            _mark_bursts(axes, rows, tables.bursts(results, scenario, name))
            paper |= _mark_paper(axes, scenario, role_of.get(name, name), windows)
            axes.set_title(f"({letter}) {label(results, scenario, name)}" + _seeds(rows))
            axes.set_xlim(-0.5, lines["iteration"].max() + 0.5)
        drawn = [y for axes in panels for line in axes.lines if line.get_gid() == "paper" for y in line.get_ydata()]
        values = pd.concat([lines["latency_s"], pd.Series(drawn, dtype=float)])
        latency_scale([axes.yaxis for axes in panels], panels, values, "y")
        panels[-1].set_xlabel("Iteration")
        figure.supylabel("Send latency, mean over workers (s)", fontsize=10)
        handles: list[Any] = []
        if len(windows):
            handles.append(Line2D([], [], ls="", marker="v", color=style()["burst"]["colour"], label="burst"))
        if paper:
            handles.append(Line2D([], [], ls="", marker="x", mew=1.8, color=style()["burst"]["colour"], label="paper"))
        if shaded:
            handles.append(Patch(color=style()["clr"]["colour"], alpha=style()["clr"]["alpha"], label="in the CLR"))
        if handles:
            figure.legend(handles=handles, loc="outside upper right", ncols=3)
        return figure


def label(results: Results, scenario: str, name: str) -> str:
    """A transport's label; says so where only an incomplete run of it exists."""
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


def _mark_paper(axes: Axes, scenario: str, role: str, windows: pd.DataFrame) -> bool:
    """A cross on each burst at the paper's latency; returns whether it has any."""
    found = [((b.start + b.stop - 1) / 2, claims.paper_value(scenario, "latency_burst", b.burst, of=role))
             for b in windows.itertuples()]
    known = [(x, y) for x, y in found if not np.isnan(y)]
    if known:
        axes.plot(*zip(*known, strict=True), ls="", marker="x", ms=6, mew=1.8, color=style()["burst"]["colour"],
                  gid="paper")
    return bool(known)


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
                      "label": label(results, scenario, name)}
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


def wrapped(name: str, inches: float) -> str:
    """A long name in several lines, broken at its hyphens where it has some."""
    return textwrap.fill(name, max(int(inches / _CHARACTER_IN), 8))
