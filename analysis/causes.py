"""Bursts by what causes them: loss that is injected beside cross traffic that overflows a queue.

Injected loss is the same whatever a sender does. At a queue, whoever sends more gets more through, and control messages
are lost with the frames.
"""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import claims, figures, metrics, tables
from analysis.load import Results

CALM = "no burst"
_MEASURES = {"latency_s": "latency_burst", "lost": "lost_at_burst", "frames": "frames_at_burst",
             "passes": "passes_at_burst"}


def has_both(results: Results, scenario: str) -> bool:
    """Whether the scenario has cross traffic and an injected loss to compare it with."""
    return {"loss", "traffic"} <= set(tables.bursts(results, scenario)["action"])


def by_cause(results: Results, table: pd.DataFrame, scenario: str) -> pd.DataFrame:
    """A row a burst and run: cause (`70% loss`, `traffic`), transport, seed, and measures as in metrics.MEASURES.

    Columns latency_s, lost (share of the frames sent), frames (sent per frame of the model), passes. Bursts that met a
    transport in its CLR are left out; iterations without any burst, outside the CLR, have the cause ``CALM``.
    """
    sample = metrics.samples(results)
    sample = sample[(sample["scenario"] == scenario) & sample["calm"]]
    calm = sample.groupby(["transport", "seed", "iteration"], as_index=False)[
        ["latency_s", "frames_sent", "frames_total", "frames_arrived", "passes"]
    ].mean()
    rows = [calm.assign(cause=CALM, lost=1 - calm["frames_arrived"] / calm["frames_sent"],
                        frames=calm["frames_sent"] / calm["frames_total"])]
    for burst in tables.bursts(results, scenario).itertuples():
        for name in tables.transports(results, scenario):
            picked = {column: metrics.pick(table, scenario, name, measure, burst.burst)
                      for column, measure in _MEASURES.items()}
            in_clr = metrics.pick(table, scenario, name, "clr_at_burst", burst.burst)
            found = pd.DataFrame(picked).loc[in_clr.index[in_clr == 0]].rename_axis("seed").reset_index()
            rows.append(found.assign(cause=tables.what(burst), transport=name))
    return pd.concat(rows, ignore_index=True)[["cause", "transport", "seed", *_MEASURES]]


def _speedup(rows: pd.DataFrame, who: dict[str, str]) -> float:
    """Median latency of the baseline over DBLP's; NaN where one of them is not there."""
    medians = rows.groupby("transport")["latency_s"].median()
    return medians.get(who.get("baseline"), np.nan) / medians.get(who.get("dblp"), np.nan)


def comparison(results: Results, table: pd.DataFrame, scenario: str) -> pd.DataFrame:
    """Medians over the bursts of each cause, a row a cause and transport, with the speedup of DBLP."""
    frame, who = by_cause(results, table, scenario), metrics.roles(results, scenario)
    lines = []
    for cause, rows in frame.groupby("cause", sort=False):
        for name in tables.transports(results, scenario):
            own = rows[rows["transport"] == name]
            if not len(own):
                continue
            low, high = own["latency_s"].min(), own["latency_s"].max()
            lines.append({
                "Cause": cause, "Transport": name, "Iterations": str(len(own)),
                "Frames lost": claims.show(own["lost"].median(), "share"),
                "Frames sent / model": f"{own['frames'].median():.2f}", "Passes": f"{own['passes'].median():.1f}",
                "Send latency, median": claims.show(own["latency_s"].median(), "s"),
                "smallest to largest": f"{low:.3f} to {high:.3f} s",
                "Speedup of dblp": claims.show(_speedup(rows, who), "times")
                if name == who.get("dblp") else tables.MISSING,
            })
    return pd.DataFrame(lines)


def figure(results: Results, table: pd.DataFrame, scenario: str) -> Figure:
    """Send latency by cause: a dot a burst, a line at the median, and the speedup of DBLP above."""
    frame, who = by_cause(results, table, scenario), metrics.roles(results, scenario)
    names, look = tables.transports(results, scenario), figures.looks(results)
    causes = list(dict.fromkeys(frame["cause"]))
    with matplotlib.rc_context(figures.style()["rc"]):
        drawn = Figure(figsize=(8, 3.9), layout="constrained")
        axes = drawn.subplots()
        for place, cause in enumerate(causes):
            rows = frame[frame["cause"] == cause]
            for number, name in enumerate(names):
                values = rows.loc[rows["transport"] == name, "latency_s"]
                middle = place + (number - (len(names) - 1) / 2) * 0.7 / len(names)
                spread = (np.arange(len(values)) - (len(values) - 1) / 2) * 0.16 / max(len(values) - 1, 1)
                axes.plot(middle + spread, values, ls="", marker="o", ms=4, color=look[name]["colour"], alpha=0.6)
                axes.plot([middle - 0.13, middle + 0.13], [values.median()] * 2, color=look[name]["colour"], lw=2.5)
            speedup = claims.show(_speedup(rows, who), "times")
            axes.text(place, 1.02, speedup, ha="center", transform=axes.get_xaxis_transform())
        axes.text(-0.5, 1.02, "speedup", ha="left", transform=axes.get_xaxis_transform())
        axes.set_xlim(-0.5, len(causes) - 0.5)
        axes.set_xticks(range(len(causes)), [_tick(frame[frame["cause"] == cause], cause, names) for cause in causes])
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        figures.latency_scale([axes.yaxis], [axes], frame["latency_s"], "y")
        axes.set_ylabel("Send latency, mean over workers (s)")
        figures.legend_below(drawn, [
            Line2D([], [], color=look[name]["colour"], marker="o", lw=2.5, label=look[name]["label"]) for name in names
        ])
        return drawn


def _tick(rows: pd.DataFrame, cause: str, names: list[str]) -> str:
    lost = rows.groupby("transport")["lost"].median()
    return f"{cause}\n" + ", ".join(f"{name} lost {lost[name]:.0%}" for name in names if name in lost)
