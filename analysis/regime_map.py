"""The map of the two regimes: theory for bursts and on average, with runs and paper on it; `make regime-map`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, PercentFormatter

from analysis import metrics, theory
from analysis.figures import legend_below, style
from analysis.load import load
from analysis.regimes import Point, points

LOW = 0.008
WORKERS = 3
COSTS = np.logspace(-3, 2, 61)
"""Per-pass cost over the time to send the model once: the x axis."""
HIGHS = np.linspace(0.05, 0.9, 52)
LOSSES = (0.3, 0.5, 0.7, 0.9)
_MARKS = {"plain": "o", "polling": "s", "paper": "*"}
_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def curves(found: Sequence[Point]) -> Figure:
    """Burst speedup, left, and average speedup, right, over the cost of a pass, a line for each P_high, at 70 % loss.

    Points are measured values with their 95 % intervals. Each stands beside a line for its own tolerances.
    """
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        burst, average = figure.subplots(1, 2, sharex=True)
        handles = []
        for high, shade in zip((0.2, 0.408, 0.6), ("#bbbbbb", "#777777", "#222222"), strict=True):
            line = [theory.burst_speedup(x, 0.7, LOW, high, WORKERS) for x in COSTS]
            handles += burst.plot(COSTS, line, color=shade, label=f"theory, P_high = {high:.1%}")
            line = [theory.average_speedup(x, 0.7, LOW, high, WORKERS) for x in COSTS]
            average.plot(COSTS, line, color=shade)
        hue = {model: _HUES[i % len(_HUES)] for i, model in enumerate(dict.fromkeys(p.model for p in found))}
        for point in found:
            look = {"ls": "", "marker": _MARKS[point.kind], "ms": 13 if point.kind == "paper" else 7, "capsize": 3,
                    "color": hue[point.model], "mec": "black", "mew": 0.7,
                    "mfc": "white" if point.kind == "plain" else hue[point.model]}
            x = np.clip(point.cost, COSTS[0], COSTS[-1])
            for estimate in point.bursts.values():
                burst.errorbar(x, estimate.mean, yerr=np.nan_to_num(estimate.half), **look)
            average.errorbar(x, point.average.mean, yerr=np.nan_to_num(point.average.half), **look)
            look.pop("capsize")
            handles.append(Line2D([], [], **look, label=f"{point.model}, {point.kind}"))
        burst.set(title="In a burst of 70% loss", ylabel="Speedup over a fixed tolerance of 0.8%", xscale="log")
        average.set(title="On average (lines: no loss, outside the CLR)", ylim=(1, 2.6))
        for axes in (burst, average):
            axes.set_xlabel("Cost of a pass / time to send the model once")
            _ticks(axes)
        legend_below(figure, handles)
        return figure


def maps(found: Sequence[Point]) -> Figure:
    """Burst speedup (above) and average speedup (below) over the cost of a pass and P_high, a column a loss.

    A point's fill is the measured mean in the colours of the map: where theory holds it is hard to see.
    """
    losses = sorted({*LOSSES, *(point.loss for point in found)})
    bursts = np.nanmean([p.burst_share for p in found if p.kind != "paper"] or [p.burst_share for p in found])
    kinds: list[tuple[str, Callable[[float, float, float], float], float]] = [
        ("In the burst", lambda x, q, high: theory.burst_speedup(x, q, LOW, high, WORKERS), 6.0),
        (f"Average, bursts in {bursts:.1%} of iterations",
         lambda x, q, high: theory.average_speedup(x, q, LOW, high, WORKERS, bursts), 3.0),
    ]
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(2.7 * len(losses) + 1.2, 6.2), layout="constrained")
        panels = figure.subplots(2, len(losses), sharex=True, sharey=True)
        for row, (title, value, top) in zip(panels, kinds, strict=True):
            levels = np.geomspace(1, top, 21)
            for axes, loss in zip(row, losses, strict=True):
                grid = [[value(x, loss, high) for x in COSTS] for high in HIGHS]
                filled = axes.contourf(COSTS, HIGHS, grid, levels=levels, cmap="viridis", extend="both")
                lines = axes.contour(COSTS, HIGHS, grid, levels=[v for v in (1.2, 1.5, 2, 3, 4, 5) if v <= top],
                                     colors="white", linewidths=0.7)
                axes.clabel(lines, fontsize=7, fmt="%gx")
                for point in (p for p in found if p.loss == loss):
                    each = [e.mean for e in point.bursts.values()] if row is panels[0] else [point.average.mean]
                    axes.scatter(np.clip(point.cost, COSTS[0], COSTS[-1]), point.high, c=[np.mean(each)],
                                 cmap=filled.cmap, norm=filled.norm, marker=_MARKS[point.kind], edgecolors="white",
                                 s=190 if point.kind == "paper" else 70, zorder=3, clip_on=False)
                axes.set(title=f"loss {loss:.0%}", xscale="log", xlim=(COSTS[0], COSTS[-1]))
                axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
                axes.grid(visible=False)
                _ticks(axes)
            row[0].set_ylabel(f"{title}\nP_high")
            bar = figure.colorbar(filled, ax=row, format=FuncFormatter(lambda v, _: f"{v:.1f} x"), label="Speedup")
            bar.set_ticks([v for v in (1, 1.5, 2, 3, 4, 6) if v <= top])
        for axes in panels[1]:
            axes.set_xlabel("Cost of a pass / time\nto send the model once")
        handles = [Line2D([], [], ls="", marker=mark, color="#555555", ms=11 if kind == "paper" else 7, label=kind)
                   for kind, mark in _MARKS.items() if any(p.kind == kind for p in found)]
        legend_below(figure, handles)
        return figure


def _ticks(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def main(
    runs: Annotated[list[Path], typer.Argument(help="Folders with runs.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")],
) -> None:
    """Draw both pictures from all runs below some folders."""
    results = load(runs).usable()
    found = points(results, metrics.measures(results))
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in (("regime-curves", curves), ("regime-map", maps)):
        draw(found).savefig(out / f"{name}.png")
        print(out / f"{name}.png")


if __name__ == "__main__":
    typer.run(main)
