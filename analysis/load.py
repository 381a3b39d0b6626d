"""Read result folders into tables: the only place that knows the result files.

A results folder holds one run (``run.json`` beside its Parquet files) or any number of them below it, of
one or several scenarios. ``results/README.md`` describes every file and column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from scenarios.transports import DEFAULT_KIND

FORMAT = 1
KEYS = ["scenario", "transport", "seed"]
"""Columns that name a run in every table."""

_COLUMNS = {
    "rounds": ["iteration", "worker", "direction", "latency_s", "passes", "frames_total", "frames_sent",
               "frames_delivered", "stale", "duplicate", "tolerance", "in_clr", "burst", "early_stop"],
    "iterations": ["iteration", "worker", "compute_s", "communication_s", "total_s", "loss", "gradient_norm"],
    "evals": ["iteration", "epoch", "worker", "metric", "value", "replica_drift"],
}
_BURSTS = ["burst", "event", "start", "stop", "action", "model", "whole", "loss", "links", "channels", "cross_traffic"]
_COUNTERS = ["burst", "host", "direction", "seen", "dropped"]
_QUEUES = ["burst", "interface", "dropped"]


class ResultsError(ValueError):
    """A results folder that cannot be read; the message names the file, what is wrong and the remedy."""


@dataclass(frozen=True)
class Results:
    """Tables of one or several runs; each has the columns ``scenario``, ``transport`` and ``seed``.

    ``runs``: a row per run (status, kind of its transport, engine, injector, data set, iterations planned and done,
    path).
    ``rounds``, ``iterations``, ``evals``: the Parquet files, concatenated.
    ``bursts``: a row per burst that took place: its number from 1, iterations [start, stop), action, ``model`` of a
    loss (random, correlated, gemodel, state), ``whole`` where it lasted for whole iterations and not a time, loss that
    the injector should cause, ``links`` as pairs of name and direction, ``channels``, the ways of gradients that
    they carry, as (worker, direction) pairs, and ``cross_traffic``, datagrams sent by hosts that do nothing else.
    ``counters``: frames the injector saw and dropped per link; ``burst`` is 0 outside that link's windows.
    ``queues``: datagrams dropped by switch and host queues per interface; ``burst`` as above.
    ``metadata``: the parsed ``run.json`` by (scenario, transport, seed). ``problems``: what the reader of a
    report must know: runs that did not complete, files cut short, runs that are not comparable.
    """

    runs: pd.DataFrame
    rounds: pd.DataFrame
    iterations: pd.DataFrame
    evals: pd.DataFrame
    bursts: pd.DataFrame
    counters: pd.DataFrame
    queues: pd.DataFrame
    metadata: dict[tuple[str, str, int], dict[str, Any]]
    problems: list[str]

    def keep(self, mask: pd.Series) -> Results:
        """Only the runs for which ``mask`` (aligned with ``runs``) is true."""
        runs = self.runs[mask]
        kept = runs[KEYS]
        tables = {name: getattr(self, name).merge(kept, on=KEYS) for name in
                  ("rounds", "iterations", "evals", "bursts", "counters", "queues")}
        names = set(kept.itertuples(index=False, name=None))
        return replace(self, runs=runs, metadata={k: v for k, v in self.metadata.items() if k in names}, **tables)

    def usable(self) -> Results:
        """Complete runs, and an incomplete one only where its scenario and transport have no complete run."""
        any_complete = self.runs.groupby(KEYS[:2])["complete"].transform("any")
        return self.keep(self.runs["complete"] | ~any_complete)

    def complete(self) -> Results:
        """Complete runs only: what verdicts are drawn from."""
        return self.keep(self.runs["complete"])


def load(paths: Path | str | Iterable[Path | str]) -> Results:
    """Read every run at or below ``paths``.

    Raises ResultsError when there is no run, a file of a complete run is missing, broken or lacks a column, the
    format is unknown, or the same scenario, transport and seed is found twice.
    """
    roots = [Path(p) for p in ([paths] if isinstance(paths, Path | str) else paths)]
    folders = sorted({file.parent.resolve() for root in roots for file in _run_files(root)})
    problems: list[str] = []
    metadata: dict[tuple[str, str, int], dict[str, Any]] = {}
    where: dict[tuple[str, str, int], Path] = {}
    rows: list[dict[str, Any]] = []
    tables: dict[str, list[pd.DataFrame]] = {k: [] for k in (*_COLUMNS, "bursts", "counters", "queues")}
    for folder in folders:
        run = _read_json(folder / "run.json")
        key = _key(run, folder / "run.json")
        if key in where:
            raise ResultsError(f"{folder} and {where[key]} both hold scenario {key[0]}, transport {key[1]}, seed "
                               f"{key[2]}; report one of them at a time")
        where[key], metadata[key] = folder, run
        complete = run["status"] == "complete"
        frames = {name: _read_table(folder, name, complete, problems) for name in _COLUMNS}
        events = _read_events(folder / "events.jsonl", complete, problems)
        frames["bursts"], frames["counters"], frames["queues"] = _windows(events, frames["rounds"])
        _check_bursts(folder, frames["rounds"], frames["bursts"], problems)
        for name, frame in frames.items():
            tables[name].append(frame.assign(**dict(zip(KEYS, key, strict=True))))
        rows.append(_run_row(key, run, folder, frames["iterations"]))
        if not complete:
            problems.append(_incomplete(rows[-1]))
    runs = pd.DataFrame(rows)
    problems += _not_comparable(metadata)
    joined = {name: _concat(frames) for name, frames in tables.items()}
    return Results(runs=runs, metadata=metadata, problems=problems, **joined)


def _run_files(root: Path) -> list[Path]:
    found = [root / "run.json"] if (root / "run.json").is_file() else sorted(root.rglob("run.json"))
    if not found:
        what = "holds no run (a folder with run.json)" if root.is_dir() else "does not exist"
        raise ResultsError(f"{root}: {what}; give a folder that `dblp run SCENARIO` wrote")
    return found


def _read_json(file: Path) -> dict[str, Any]:
    try:
        run = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ResultsError(f"{file}:{error.lineno}: not valid JSON ({error.msg}); run the scenario again") from None
    if run.get("format") != FORMAT:
        raise ResultsError(f"{file}: format {run.get('format')!r}, this version reads {FORMAT}; "
                           "use the version that wrote it")
    return run


def _key(run: dict[str, Any], file: Path) -> tuple[str, str, int]:
    try:
        return run["scenario"]["name"], run["transport"], int(run["seed"])
    except KeyError as error:
        raise ResultsError(f"{file}: the field {error} is missing; run the scenario again") from None


def _run_row(
    key: tuple[str, str, int], run: dict[str, Any], folder: Path, iterations: pd.DataFrame
) -> dict[str, Any]:
    scenario, dataset = run["scenario"], run.get("dataset") or {}
    transport = scenario.get("transports", {}).get(key[1], {})
    return dict(zip(KEYS, key, strict=True)) | {
        "status": run["status"],
        "complete": run["status"] == "complete",
        "error": run.get("error"),
        "kind": transport.get("kind", DEFAULT_KIND),
        "policy": transport.get("tolerance", {}).get("policy", "unknown"),
        "engine": run.get("engine"),
        "injector": run.get("injector"),
        "model": scenario.get("workload", {}).get("model"),
        "profile": scenario.get("profile"),
        "dataset": dataset.get("name"),
        "stands_in_for": dataset.get("stands_in_for"),
        "workers": scenario.get("topology", {}).get("workers"),
        "iterations_planned": scenario.get("workload", {}).get("iterations", 0),
        "iterations_done": int(iterations["iteration"].max()) + 1 if len(iterations) else 0,
        "duration_s": run.get("duration_s"),
        "path": folder,
    }


def _incomplete(row: dict[str, Any]) -> str:
    why = f" ({row['error']})" if row["error"] else ""
    state = "did not end (still running, or killed)" if row["status"] == "running" else row["status"]
    return (f"{row['scenario']}, {row['transport']}, seed {row['seed']}: {state}{why} after "
            f"{row['iterations_done']} of {row['iterations_planned']} iterations. No verdict uses it.")


def _read_table(folder: Path, name: str, complete: bool, problems: list[str]) -> pd.DataFrame:
    file = folder / f"{name}.parquet"
    try:
        frame = pd.read_parquet(file)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else "is cut short or not Parquet"
        if complete:
            raise ResultsError(f"{file}: {what}, though the run is marked complete; run it again") from None
        problems.append(f"{folder.parent.name}/{folder.name}/{file.name} {what}; left out.")
        return pd.DataFrame({column: pd.Series(dtype=object) for column in _COLUMNS[name]})
    if lacking := [column for column in _COLUMNS[name] if column not in frame]:
        raise ResultsError(f"{file}: column {', '.join(lacking)} is missing; written by another version?")
    return frame[_COLUMNS[name]]


def _read_events(file: Path, complete: bool, problems: list[str]) -> list[dict[str, Any]]:
    if not file.is_file():
        if complete:
            raise ResultsError(f"{file}: is missing, though the run is marked complete; run it again")
        problems.append(f"{file.parent.parent.name}/{file.parent.name}/{file.name} is missing; its bursts are unknown.")
        return []
    events = []
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            # A run that was killed may leave half of its last line.
            if complete or number < len(lines):
                raise ResultsError(f"{file}:{number}: not valid JSON; run the scenario again") from None
    return events


def _windows(events: list[dict[str, Any]], rounds: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Burst windows, and what injector and queues counted in and outside them.

    Counters in the file are cumulative; what was counted between two lines belongs to the windows open between
    them. A window that never closed ends with the last recorded iteration.
    """
    end = int(rounds["iteration"].max()) + 1 if len(rounds) else 0
    bursts: list[dict[str, Any]] = []
    open_by_event: dict[int, dict[str, Any]] = {}
    counters: list[tuple[int, str, str, int, int]] = []
    queues: list[tuple[int, str, int]] = []
    before: dict[str, Any] = {}
    for line in events:
        by_loss = sorted(open_by_event.values(), key=lambda burst: burst["loss"])  # of several, the one that loses most
        active = {link: burst["burst"] for burst in by_loss for link in burst["links"]}
        if before:
            counters += _injected(before, line, active)
            queues += _dropped(before, line, max(active.values(), default=0))
        before = line
        if line["kind"] == "burst_start":
            links = [(host, direction) for host, direction in line["links"]]
            bursts.append({"burst": len(bursts) + 1, "event": line["event"], "start": line["iteration"],
                           "stop": max(end, line["iteration"] + 1), "action": line.get("action", "loss"),
                           "model": line.get("model", "random"), "whole": True, "loss": line["loss"], "links": links,
                           "channels": [(host, direction) for host, direction in line.get("channels", links)],
                           "cross_traffic": -_cross_traffic(line)})
            open_by_event[line["event"]] = bursts[-1]
        elif line["kind"] == "burst_stop" and line["event"] in open_by_event:
            burst = open_by_event.pop(line["event"])
            burst.update(stop=line["iteration"], whole="planned_s" not in line,
                         cross_traffic=burst["cross_traffic"] + _cross_traffic(line))
    return (pd.DataFrame(bursts, columns=_BURSTS), pd.DataFrame(counters, columns=_COUNTERS),
            pd.DataFrame(queues, columns=_QUEUES))


def _cross_traffic(line: dict[str, Any]) -> int:
    """Datagrams of cross traffic, cumulative."""
    return sum(sender["datagrams"] for sender in line.get("sent", {}).values())


def _injected(before: dict, after: dict, active: dict) -> Iterator[tuple[int, str, str, int, int]]:
    old = {(c["host"], c["direction"]): c for c in before.get("counters") or []}
    for c in after.get("counters") or []:
        link = (c["host"], c["direction"])
        start = old.get(link, {"seen": 0, "dropped": 0})
        yield active.get(link, 0), *link, c["seen"] - start["seen"], c["dropped"] - start["dropped"]


def _dropped(before: dict, after: dict, burst: int) -> Iterator[tuple[int, str, int]]:
    old = {q["interface"]: q["dropped"] for q in before.get("queues") or []}
    for q in after.get("queues") or []:
        yield burst, q["interface"], q["dropped"] - old.get(q["interface"], 0)


def _check_bursts(folder: Path, rounds: pd.DataFrame, bursts: pd.DataFrame, problems: list[str]) -> None:
    """The rounds' own marks must agree with the injector's log, else nothing said about bursts holds."""
    recorded = set(rounds["iteration"])
    logged = {k for start, stop in zip(bursts["start"], bursts["stop"], strict=True) for k in range(start, stop)}
    marked = set(rounds.loc[rounds["burst"].astype(bool), "iteration"])
    if differ := sorted(marked ^ (logged & recorded)):
        problems.append(f"{folder.parent.name}/{folder.name}: rounds.parquet and events.jsonl disagree on which "
                        f"iterations are bursts ({', '.join(map(str, differ[:5]))}).")


def _not_comparable(metadata: dict[tuple[str, str, int], dict[str, Any]]) -> list[str]:
    """Names the settings in which runs of one scenario differ although only transport and seed should."""
    problems = []
    for name in sorted({key[0] for key in metadata}):
        flat = []
        for key, run in metadata.items():
            if key[0] == name:
                parts = {k: v for k, v in run["scenario"].items() if k not in ("transports", "seeds", "description")}
                flat.append(pd.json_normalize(parts | {"engine": run.get("engine"),
                            "dataset": (run.get("dataset") or {}).get("name")}).iloc[0].to_dict())
        names = sorted({field for run in flat for field in run})
        if differ := [field for field in names if len({repr(run.get(field)) for run in flat}) > 1]:
            problems.append(f"{name}: its runs differ in {', '.join(differ)}, so they can't be compared.")
    return problems


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate; empty tables would only blur the column types."""
    full = [frame for frame in frames if len(frame)]
    return pd.concat(full, ignore_index=True) if full else frames[0]
