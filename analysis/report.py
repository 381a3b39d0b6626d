"""The report of one or several runs: verdicts, pictures, tables and conditions as Markdown, or as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import causes, claims, conditions, figures, metrics, tables
from analysis.load import Results, load


@dataclass(frozen=True)
class ReportPaths:
    """What ``write`` wrote."""

    markdown: Path
    figures: list[Path]


def write(paths: Sequence[Path], out: Path) -> ReportPaths:
    """Write ``out/report.md`` and its pictures from every run at or below ``paths``.

    Raises analysis.load.ResultsError when the runs cannot be read.
    """
    everything = load(paths)
    results = everything.usable()
    out.mkdir(parents=True, exist_ok=True)
    table = metrics.measures(results)
    pictures = {name: out / f"{name}.png" for name in _draw(results, table, out)}
    markdown = out / "report.md"
    markdown.write_text("\n\n".join(_sections(everything, results, table, pictures, out)) + "\n")
    return ReportPaths(markdown=markdown, figures=list(pictures.values()))


def summary(paths: Sequence[Path]) -> dict[str, Any]:
    """What the report says, as plain values for JSON: problems, runs, verdicts, measures, conditions, tables.

    Times in seconds, shares as fractions; null where a value is unknown. Raises as ``write`` does.
    """
    everything = load(paths)
    results = everything.usable()
    table = metrics.measures(results)
    estimates = [
        {**dict(zip(["scenario", "transport", "measure", "burst"], key, strict=True)), **vars(metrics.estimate(rows))}
        for key, rows in table.groupby(["scenario", "transport", "measure", "burst"])["value"]
    ]
    runs = everything.runs.assign(path=everything.runs["path"].map(str))
    return _plain({
        "paper": claims.document()["paper"],
        "problems": everything.problems,
        "runs": runs.to_dict("records"),
        "verdicts": [v.as_dict() for v in claims.evaluate(everything)],
        "measures": estimates,
        "conditions": conditions.conditions(results, table).to_dict("records"),
        "latency": {s: tables.latency(results, table, s).to_dict("records") for s in tables.scenarios(results)},
    })


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(results: Results, table: pd.DataFrame, out: Path) -> list[str]:
    """Draw what there is data for; returns the names of the pictures written to ``out``."""
    drawn: dict[str, Figure] = {}
    for scenario in tables.scenarios(results):
        if (results.rounds["scenario"] == scenario).any():
            drawn[f"latency-{scenario}"] = figures.latency_by_iteration(results, scenario)
            drawn[f"cdf-{scenario}"] = figures.latency_cdf(results, scenario)
        if causes.has_both(results, scenario):
            drawn[f"causes-{scenario}"] = causes.figure(results, table, scenario)
    if (table["measure"] == "training_time").any():
        drawn["training-time"] = figures.training_time(results, table)
    if (table["measure"] == "accuracy").any():
        drawn["accuracy"] = figures.accuracy_by_epoch(results)
    for name, figure in drawn.items():
        figure.savefig(out / f"{name}.png")
    return list(drawn)


def _sections(
    everything: Results, results: Results, table: pd.DataFrame, pictures: dict[str, Path], out: Path
) -> list[str]:
    found = claims.evaluate(everything)
    text = ["# Report"]
    if everything.problems:
        text.append("\n".join(["**Read this first**", "", *(f"- {problem}" for problem in everything.problems)]))
    text += _verdicts(found)
    for scenario in tables.scenarios(results):
        text.append(f"## {scenario}")
        if (name := f"latency-{scenario}") in pictures:
            text += [
                _picture(pictures[name], "Send latency by iteration (Figure 2 of the paper). Triangles: bursts."),
                _picture(pictures[f"cdf-{scenario}"], "Distribution of send latency (Figure 3 of the paper)."),
                markdown(tables.latency(results, table, scenario)),
            ]
        if (name := f"causes-{scenario}") in pictures:
            text += [_picture(pictures[name], "Injected loss beside cross traffic that overflows a queue, outside the "
                              "CLR: a dot a burst, lines at the medians."),
                     markdown(causes.comparison(results, table, scenario))]
        text.append(_seeds(results, scenario))
    text.append("## Training time and accuracy")
    if "training-time" in pictures:
        text += [_picture(pictures["training-time"], "Training time (Figure 5 of the paper)."),
                 markdown(tables.training_time(results, table))]
    if "accuracy" in pictures:
        text += [_picture(pictures["accuracy"], "Accuracy by epoch (Figure 6a of the paper)."),
                 markdown(tables.accuracy(results, table)), *_datasets(results)]
    text += ["## Conditions", "Whether the runs had what the conclusions above need. p is the tolerance in force, q "
             "the loss of the burst.", markdown(conditions.conditions(results, table)),
             "Share of the model's frames that never arrived:", markdown(tables.missing(results))]
    text += ["## Set-up", markdown(tables.setup(results))]
    text += _provenance(everything, out)
    text.append(_DEFINITIONS)
    return text


def _verdicts(found: list[claims.Verdict]) -> list[str]:
    counts = {verdict: sum(v.verdict == verdict for v in found)
              for verdict in (claims.REPRODUCED, claims.DIFFERS, claims.NOT_RUN)}
    notes = list(dict.fromkeys(reason for v in found for reason in v.reasons))
    reasons = claims.document()["reasons"]
    text = [f"{len(found)} numbers of the paper ({claims.document()['paper']}): "
            + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()) + ".",
            markdown(tables.verdicts(found, notes))]
    if notes:
        text.append("\n".join(f"- Note {i}: {reasons[note].strip()}" for i, note in enumerate(notes, start=1)))
    return text


def _picture(path: Path, caption: str) -> str:
    return f"![{caption}]({path.name})\n\n{caption}"


def _seeds(results: Results, scenario: str) -> str:
    runs = results.runs[results.runs["scenario"] == scenario]
    each = [f"{name}: {', '.join(map(str, sorted(rows['seed'])))}" for name, rows in runs.groupby("transport")]
    interval = " Values are means with 95 % confidence intervals." if runs["transport"].value_counts().max() > 1 else ""
    return f"Seeds of {'; '.join(each)}.{interval}"


def _datasets(results: Results) -> list[str]:
    lines = []
    for run in results.metadata.values():
        data = run.get("dataset") or {}
        if data:
            stands = f" It stands in for {data['stands_in_for']}." if data.get("stands_in_for") else ""
            note = f" {data['note']}" if data.get("note") else ""
            lines.append(f"Data set: {data['name']} ({data.get('source')}), {data.get('train'):,} training and "
                         f"{data.get('test'):,} test samples, {data.get('classes')} classes.{stands}{note}")
    return list(dict.fromkeys(lines))


def _provenance(results: Results, out: Path) -> list[str]:
    """Runs with status and place, the machines, and the commands that make them again."""
    rows = [{
        "Scenario": r.scenario, "Transport": r.transport, "Seed": str(r.seed), "Status": r.status,
        "Iterations": f"{r.iterations_done} of {r.iterations_planned}", "Profile": r.profile or tables.MISSING,
        "Engine": r.engine or tables.MISSING, "Injector": r.injector or tables.MISSING,
        "Minutes": f"{r.duration_s / 60:.1f}" if pd.notna(r.duration_s) else tables.MISSING,
        "Folder": os.path.relpath(r.path, out.resolve()),
    } for r in results.runs.itertuples()]
    machines, commands = [], []
    for run in results.metadata.values():
        m, git = run.get("machine") or {}, run.get("git") or {}
        versions = ", ".join(f"{k} {v}" for k, v in (run.get("versions") or {}).items())
        dirty = " with uncommitted changes" if git.get("dirty") else ""
        commit = (git.get("commit") or "unknown")[:12]
        machines.append(f"- {m.get('cpu', 'unknown CPU')}, {m.get('cores', '?')} cores, "
                        f"{m.get('memory_gib', '?')} GiB, {m.get('os', '?')}, kernel {m.get('kernel', '?')}; "
                        f"{versions}; commit {commit}{dirty}.")
        commands.append(run.get("command") or "")
    unique = [line for line in dict.fromkeys(commands) if line]
    return ["## Runs", markdown(pd.DataFrame(rows)), "Machine:", "\n".join(dict.fromkeys(machines)),
            "To reproduce:", "\n".join(["```", *unique, "```"])]


_DEFINITIONS = """\
## Definitions

Send latency: from a worker's first frame of a round to the server's STOP. Distributions and medians take each
worker in each iteration as a sample; the value of an iteration, and so of a burst, the tail (the largest) and the
average, is the mean over the workers. Training time: computation and all-reduce of all iterations, without
start-up and evaluation. Accuracy: mean over the workers after the last epoch. `results/README.md` has the rest."""


def markdown(frame: pd.DataFrame) -> str:
    """A DataFrame of text as a Markdown table; numbers are aligned to the right."""
    if frame.empty:
        return "Nothing recorded."
    cells = [[str(value).replace("|", "\\|") for value in row] for row in frame.itertuples(index=False)]
    numeric = [all(c[:1].isdigit() or c[:1] in "+-" for c in column) for column in zip(*cells, strict=True)]
    rule = ["--:" if right else "---" for right in numeric]
    return "\n".join("| " + " | ".join(row) + " |" for row in ([*frame.columns], rule, *cells))
