"""A run's folder: `run.json`, the rows that its processes write as they go, and the tables made of them.

Every process appends JSON lines to a file of its own under `nodes/`, so nothing is lost when one dies; `collect` turns
them into Parquet tables. The columns are described in results/README.md.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol import RoundStats
from scenarios import Scenario, ScenarioError
from testbed.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
RUN_FILE, EVENTS_FILE, NODES, LOGS = "run.json", "events.jsonl", "nodes", "logs"

ROUND_COLUMNS = {
    "iteration": "int32", "worker": "string", "direction": "string", "latency_s": "float64", "passes": "int32",
    "frames_total": "int32", "frames_sent": "int32", "frames_delivered": "int32", "stale": "int32",
    "duplicate": "int32", "tolerance": "float64", "in_clr": "bool", "burst": "bool", "early_stop": "bool",
}
ITERATION_COLUMNS = {
    "iteration": "int32", "worker": "string", "compute_s": "float64", "communication_s": "float64",
    "total_s": "float64", "loss": "float64", "gradient_norm": "float64",
}
EVAL_COLUMNS = {
    "iteration": "int32", "epoch": "int32", "worker": "string", "metric": "string", "value": "float64",
    "replica_drift": "float64",
}
DIRECTION_OF = {"reduce": "to_server", "broadcast": "to_worker"}


class ResultsError(UserError):
    """A results folder cannot be used as asked; the text says what to do."""


class RunFolder:
    """One run: `results/<scenario>/<transport>-s<seed>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse_if_taken(self, overwrite: bool, profile: str | None) -> None:
        """Whether a run of this profile may be written here.

        Raises:
            ResultsError: a complete run stands there already and `overwrite` is false, or something else does.
        """
        if (self.path / RUN_FILE).exists():
            there = self.read()
            if not overwrite and there["status"] == "complete":
                other = "" if there.get("profile") == profile else (
                    f" with {_profile(there.get('profile'))}, and this one would be with {_profile(profile)}"
                )
                remedy = "give --overwrite to replace it or --out for another folder"
                raise ResultsError(f"{self.path} holds a complete run{other}; {remedy}")
        elif self.path.exists() and any(self.path.iterdir()):
            raise ResultsError(f"{self.path} exists and is not a run; give --out for another folder")

    def is_finished(self, scenario: Scenario, transport: str, **settings: Any) -> bool:
        """Whether a complete run of this scenario over this transport, with just these settings, stands here.

        The scenario's other transports and seeds, and its description, make no difference to a run.

        Args:
            scenario, transport: what is to be run.
            settings: further fields of `run.json`; `dataset` by its name.

        Raises:
            ResultsError: a complete run with other settings stands there; the text names the first that differs.
        """
        if not (self.path / RUN_FILE).exists():
            return False
        there = self.read()
        if there["status"] != "complete":
            return False
        remedy = "give --overwrite instead of --resume to replace it, or --out for another folder"
        ours = {**settings, "transport": transport, **_facts(scenario, transport)}
        theirs = {key: there.get(key) for key in (*settings, "transport")}
        theirs["dataset"] = (there.get("dataset") or {}).get("name")
        try:
            theirs |= _facts(self.scenario(), there["transport"])
        except ScenarioError as error:
            raise ResultsError(f"{self.path} holds a complete run of another version ({error}); {remedy}") from error
        for key in dict.fromkeys((*ours, *theirs)):
            if ours.get(key) != theirs.get(key):
                raise ResultsError(
                    f"{self.path} holds a complete run with {key} {theirs.get(key)!r}, and this one would have "
                    f"{ours.get(key)!r}; {remedy}"
                )
        return True

    def create(self, overwrite: bool, **fields: Any) -> None:
        """Make the folder and `run.json` with status `running`, in place of a run that stands there.

        Raises:
            ResultsError: as `refuse_if_taken`.
        """
        self.refuse_if_taken(overwrite, fields.get("profile"))
        if self.path.exists():
            shutil.rmtree(self.path)
        (self.path / NODES).mkdir(parents=True)
        (self.path / LOGS).mkdir()
        self._write({"format": FORMAT, "status": "running", "error": None, **fields})

    def read(self) -> dict[str, Any]:
        """`run.json`."""
        return json.loads((self.path / RUN_FILE).read_text())

    def scenario(self) -> Scenario:
        """The scenario as it was resolved for this run."""
        return Scenario.from_resolved(self.read()["scenario"])

    def update(self, **fields: Any) -> None:
        """Change fields of `run.json`, atomically."""
        self._write({**self.read(), **fields})

    def _write(self, content: dict[str, Any]) -> None:
        temporary = self.path / f".{RUN_FILE}.new"
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        os.replace(temporary, self.path / RUN_FILE)

    def log(self, node: str) -> Path:
        """Where a process's output goes."""
        return self.path / LOGS / f"{node}.log"

    def collect(self) -> None:
        """Make the tables of what the processes wrote, whole or not, and remove what they are made of."""
        rows = self._rows()
        rounds = _table(rows["round"], ROUND_COLUMNS)
        iterations = _table(rows["iteration"], ITERATION_COLUMNS)
        evals = _table(rows["eval"], EVAL_COLUMNS)
        rounds["burst"] = _in_burst(rounds, self.scenario(), self._spells())
        norms = {row["iteration"]: row["gradient_norm"] for row in rows["norm"]}
        iterations["gradient_norm"] = iterations["iteration"].map(norms).astype("float64")
        drift = {(row["iteration"], row["worker"]): row["replica_drift"] for row in rows["drift"]}
        evals["replica_drift"] = [
            drift.get(key, float("nan")) for key in zip(evals["iteration"], evals["worker"], strict=True)
        ]
        for name, table in (("rounds", rounds), ("iterations", iterations), ("evals", evals)):
            order = [column for column in ("iteration", "worker", "direction", "metric") if column in table]
            table.sort_values(order).to_parquet(self.path / f"{name}.parquet", index=False)
        shutil.rmtree(self.path / NODES)

    def _spells(self) -> list[tuple[int, int, list[list[str]]]]:
        """(start, stop, channels) of the events that lasted a time, by the log: iterations that they touched."""
        timed = {spell.event for spell in self.scenario().spells()}
        begun: dict[int, dict[str, Any]] = {}
        spells = []
        path = self.path / EVENTS_FILE
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            if entry.get("event") not in timed:
                continue
            if entry["kind"] == "burst_start":
                begun[entry["event"]] = entry
            elif entry["kind"] == "burst_stop" and (start := begun.pop(entry["event"], None)):
                spells.append((start["iteration"], entry["iteration"], entry["channels"]))
        return spells

    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {"round": [], "iteration": [], "eval": [], "norm": [], "drift": []}
        for path in sorted((self.path / NODES).glob("*.jsonl")):
            for line in path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:      # the last line of a process that was killed while it wrote
                    continue
                rows[row.pop("kind")].append(row)
        return rows


def _facts(scenario: Scenario, transport: str) -> dict[str, Any]:
    """What makes a run what it is, one entry a field, by its dotted name."""
    whole = scenario.model_dump(mode="json", exclude={"description", "seeds", "transports"})
    return dict(_flat("", {**whole, "transports": {transport: scenario.transports[transport].model_dump(mode="json")}}))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, value


def _profile(name: str | None) -> str:
    return f"profile {name!r}" if name else "no profile"


def _table(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    import pandas as pd  # half a second, which the processes of a run do not need

    defaults = {"burst": False, "gradient_norm": float("nan"), "replica_drift": float("nan")}
    data = {name: pd.Series([row.get(name, defaults.get(name)) for row in rows], dtype=kind)
            for name, kind in columns.items()}
    return pd.DataFrame(data)


def _in_burst(
    rounds: pd.DataFrame, scenario: Scenario, spells: list[tuple[int, int, list[list[str]]]]
) -> np.ndarray:
    """(rounds,) bool: whether an event touched its way while each ran: whole iterations by plan, times by the log."""
    plan = [
        (window.start, window.stop, scenario.events[window.event].channels(scenario.topology))
        for window in scenario.timeline()
    ]
    hit = {
        (iteration, host, direction)
        for start, stop, channels in [*plan, *spells]
        for host, direction in channels
        for iteration in range(start, stop)
    }
    keys = zip(rounds["iteration"], rounds["worker"], rounds["direction"].map(DIRECTION_OF), strict=True)
    return np.array([key in hit for key in keys], bool)


class NodeLog:
    """One process's rows, on disk line by line."""

    def __init__(self, folder: Path, node: str) -> None:
        self._file = (folder / NODES / f"{node}.jsonl").open("a", buffering=1)

    def row(self, kind: str, **fields: Any) -> None:
        """Append one row."""
        self._file.write(json.dumps({"kind": kind, **fields}) + "\n")

    def round(self, iteration: int, stats: RoundStats) -> None:
        """Append the record of one gradient over one channel."""
        fields = asdict(stats)
        del fields["round"]
        self.row("round", iteration=iteration, worker=fields.pop("peer"), **fields)
