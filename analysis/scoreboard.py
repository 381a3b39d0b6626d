"""Verdicts on the paper's numbers, as the table that a report opens with and as text for a terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis import claims

_SIGN = {"within": "", "at_most": "at most ", "at_least": "at least "}
_STYLE = {claims.REPRODUCED: "green", claims.DIFFERS: "yellow", claims.NOT_RUN: "dim"}


def notes(found: list[claims.Verdict]) -> list[str]:
    """What differing numbers depend on, as keys of ``depends`` in claims.yaml, in the order of their notes."""
    return list(dict.fromkeys(key for v in found if v.verdict == claims.DIFFERS for key in v.depends))


def frame(found: list[claims.Verdict], out: Path) -> pd.DataFrame:
    """The table of the report; links to runs are relative to ``out``."""
    numbered = notes(found)
    return pd.DataFrame([{
        "Claim": f"{v.text} ({v.source})", "Paper": _paper(v), "Measured": claims.show(v.measured, v.unit, v.half),
        "Verdict": v.verdict, "Why": _why(v, numbered),
        "Run": ", ".join(f"[{run.name}]({os.path.relpath(run, out.resolve())})" for run in _folders(v)) or "-",
        "Command": f"`{v.command}`",
    } for v in found])


def summary(found: list[claims.Verdict]) -> str:
    """How many there are of each verdict."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in claims.count(found).items())
    return f"{len(found)} claims of the paper ({claims.document()['paper']}): {counts}."


def render(found: list[claims.Verdict], console: Console) -> None:
    """Print them below the runs that show them and the command that makes those."""
    numbered = notes(found)
    groups: dict[tuple[str, str], list[claims.Verdict]] = {}
    for v in found:
        where = ", ".join(map(_short, _folders(v))) or f"{v.scenario}, not run here"
        groups.setdefault((where, v.command), []).append(v)
    for (where, command), members in groups.items():
        console.print(f"[bold]{escape(where)}[/]: {escape(command)}", soft_wrap=True, highlight=False)
        table = Table("claim", "paper", "measured", "verdict", "why", box=None, header_style="bold")
        for column, share in enumerate((4, 0, 0, 0, 3)):
            table.columns[column].ratio = share or None
            table.columns[column].no_wrap = not share
        for v in members:
            cells = (f"{v.text} ({v.source})", _paper(v), claims.show(v.measured, v.unit, v.half))
            style = _STYLE[v.verdict]
            table.add_row(*map(escape, cells), f"[{style}]{v.verdict}[/]", escape(_why(v, numbered)))
        console.print(table, "", highlight=False)
    for number, key in enumerate(numbered, start=1):
        console.print(f"[bold]note {number}[/] {escape(claims.document()['depends'][key].strip())}")
    console.print(summary(found))


def _short(path: Path) -> str:
    """A folder below the current one without its way there."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _paper(v: claims.Verdict) -> str:
    return ("" if v.unit == "yes" else _SIGN[v.compare]) + claims.show(v.paper, v.unit)


def _why(v: claims.Verdict, numbered: list[str]) -> str:
    refer = [f"note {numbered.index(key) + 1}" for key in v.depends] if v.verdict == claims.DIFFERS else []
    return "; ".join(filter(None, (v.why, ", ".join(refer))))


def _folders(v: claims.Verdict) -> list[Path]:
    """The folders of scenarios that hold its runs."""
    return list(dict.fromkeys(Path(run).parent for run in v.runs))
