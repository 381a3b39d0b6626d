"""The report of one or several runs: one page as Markdown and as HTML, with its pictures; or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import claims, conditions, evidence, metrics, regimes, sections, tables
from analysis.document import Document
from analysis.load import load


@dataclass(frozen=True)
class ReportPaths:
    """What ``write`` wrote."""

    markdown: Path
    html: Path
    figures: list[Path]


def write(paths: Sequence[Path], out: Path) -> ReportPaths:
    """Write ``out/report.md``, its pictures, and ``out/report.html``, which holds all, from every run below ``paths``.

    Raises analysis.load.ResultsError when the runs cannot be read.
    """
    everything = load(paths)
    results = everything.usable()
    out.mkdir(parents=True, exist_ok=True)
    context = sections.Context(everything, results, metrics.measures(results), out)
    document = Document()
    for chapter in (*sections.CHAPTERS, *evidence.CHAPTERS):
        document.add(*chapter(context))
    written = ReportPaths(out / "report.md", out / "report.html", context.pictures)
    written.markdown.write_text(document.markdown())
    written.html.write_text(document.html())
    return written


def summary(paths: Sequence[Path]) -> dict[str, Any]:
    """What the report says, as plain values for JSON: problems, runs, verdicts, measures, theory, conditions, tables.

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
        "theory": regimes.predictions(results).to_dict("records"),
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
