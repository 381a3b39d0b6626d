"""The chapters of the report that say why its numbers can be believed: theory, conditions, runs, definitions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pandas as pd

from analysis import conditions, regimes, tables
from analysis.document import Block, Code, Heading, Table, Text
from analysis.sections import Context


def theory(context: Context) -> Iterator[Block]:
    """Passes and bytes by arithmetic beside the measured ones."""
    frame = regimes.predictions(context.results)
    if frame.empty:
        return
    yield Heading("Theory beside measurement")
    yield Text("Passes and frames sent to the server, mean over workers, iterations and seeds, in each burst of "
               "independent loss and without loss; p is the tolerance in force, q the loss (docs/theory.md). Passes "
               "may differ by more than 10 % where few samples allow it.")
    yield Table(tables.predictions(frame))


def checked(context: Context) -> Iterator[Block]:
    """Whether the runs had what the conclusions need."""
    yield Heading("Conditions")
    yield Text("Whether the runs had what the conclusions above need. p is the tolerance in force, q the loss.")
    yield Table(conditions.conditions(context.results, context.measures))
    yield Text("Share of the model's frames that never arrived:")
    yield Table(tables.missing(context.results))


def provenance(context: Context) -> Iterator[Block]:
    """Runs with status and place, the machines, and the commands that make them again."""
    results = context.everything
    rows = [{
        "Scenario": r.scenario, "Transport": r.transport, "Seed": str(r.seed), "Status": r.status,
        "Iterations": f"{r.iterations_done} of {r.iterations_planned}",
        "Profile": r.profile if pd.notna(r.profile) else tables.MISSING,
        "Engine": r.engine or tables.MISSING, "Injector": r.injector or tables.MISSING,
        "Minutes": f"{r.duration_s / 60:.1f}" if pd.notna(r.duration_s) else tables.MISSING,
        "Folder": os.path.relpath(r.path, context.out.resolve()),
    } for r in results.runs.itertuples()]
    machines, commands = [], []
    for run in results.metadata.values():
        m, git = run.get("machine") or {}, run.get("git") or {}
        versions = ", ".join(f"{k} {v}" for k, v in (run.get("versions") or {}).items())
        dirty = " with uncommitted changes" if git.get("dirty") else ""
        commit = (git.get("commit") or "unknown")[:12]
        machines.append(f"{m.get('cpu', 'unknown CPU')}, {m.get('cores', '?')} cores, "
                        f"{m.get('memory_gib', '?')} GiB, {m.get('os', '?')}, kernel {m.get('kernel', '?')}; "
                        f"{versions}; commit {commit}{dirty}.")
        commands.append(run.get("command") or "")
    yield Heading("Runs")
    yield Table(pd.DataFrame(rows))
    yield Text("Machine:")
    yield Text(tuple(dict.fromkeys(machines)))
    yield Text("To reproduce:")
    yield Code(tuple(line for line in dict.fromkeys(commands) if line))


def definitions(context: Context) -> Iterator[Block]:
    """What the words mean."""
    yield Heading("Definitions")
    yield Text(
        "Send latency: from a worker's first frame of a round to the server's STOP; of a TCP star, from its first byte "
        "to the byte by which the server says that it has all. Distributions and medians take "
        "each worker in each iteration as a sample; the value of an iteration, and so of a burst, the tail (the "
        "largest) and the average, is the mean over the workers. Training time: computation and all-reduce of all "
        "iterations, without start-up and evaluation. Accuracy and replica drift: mean over the workers after the "
        "last epoch. `results/README.md` has the rest.")


CHAPTERS = (theory, checked, provenance, definitions)
