"""What each kind of event does to a run, a picture a scenario: `python -m analysis.gallery RESULTS --out FOLDER`.

The pictures of docs/bursts.md are made by it from runs of scenarios/examples/burst-*.yaml (`make gallery`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis import tables
from analysis.figures import style
from analysis.load import Results, load


def picture(results: Results, scenario: str) -> Figure:
    """Send latency (of the slower way) and frames sent (both ways) by worker and iteration, with a band for each event.

    Latencies below 1 ms would say more of the host than of the network, and are drawn as 1 ms.
    """
    both = results.rounds[results.rounds["scenario"] == scenario]
    rounds = both.groupby(["worker", "iteration"], as_index=False).agg(
        latency_s=("latency_s", "max"), frames_sent=("frames_sent", "sum"), frames_total=("frames_total", "sum")
    )
    bursts = tables.bursts(results, scenario)
    colours = [entry["colour"] for entry in style()["others"]]
    with matplotlib.rc_context(style()["rc"]):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        latency, frames = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        for number, (worker, rows) in enumerate(rounds.groupby("worker")):
            look = {"color": colours[number % len(colours)], "marker": "o", "ms": 3, "label": worker}
            latency.plot(rows["iteration"], rows["latency_s"].clip(lower=1e-3), **look)
            frames.plot(rows["iteration"], rows["frames_sent"] / rows["frames_total"], **look)
        for burst in bursts.itertuples():
            for axes in (latency, frames):
                axes.axvspan(burst.start - 0.5, burst.stop - 0.5, color=style()["clr"]["colour"],
                             alpha=style()["clr"]["alpha"], lw=0, zorder=0)
            name = f"{burst.model} loss" if burst.action == "loss" else burst.action
            latency.annotate(name.replace("_", " "), (burst.start - 0.4, 1), va="bottom", fontsize=9,
                             xycoords=latency.get_xaxis_transform(), annotation_clip=False)
        latency.set_yscale("log")
        latency.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        latency.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{1e3 * x:g}"))
        latency.yaxis.set_minor_locator(NullLocator())
        latency.set_ylabel("Latency (ms)")
        frames.set_ylabel("Sent / model")
        frames.set_ylim(0, None)
        frames.set_xlabel("Iteration")
        frames.set_xlim(-0.7, results.runs.loc[results.runs["scenario"] == scenario, "iterations_planned"].max() - 0.3)
        handles, labels = latency.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
    return figure


def main(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("docs/bursts"),
) -> None:
    """Draw a picture of each scenario."""
    results = load(runs)
    out.mkdir(parents=True, exist_ok=True)
    for scenario in tables.scenarios(results):
        path = out / f"{scenario}.png"
        picture(results, scenario).savefig(path, dpi=100)
        typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
