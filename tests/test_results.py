"""A run's folder: who may take it, and the tables made of what the processes wrote, whole or not."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tiny import scenario

from protocol import RoundStats
from testbed.results import EVAL_COLUMNS, ITERATION_COLUMNS, ROUND_COLUMNS, NodeLog, ResultsError, RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of 12 iterations; a burst from w2 in iterations 3 and 4, one to all workers in iteration 8."""
    plan = scenario(
        {"at": {"iteration": 3}, "duration": "2 iterations", "selector": ["w2"]},
        {"at": {"iteration": 8}, "direction": "to_worker"},
    )
    run = RunFolder(tmp_path / "out" / "tiny" / "mlt-s1")
    run.create(False, scenario=plan.model_dump(mode="json"), transport="mlt", seed=1)
    return run


def stats(peer: str, direction: str, **changes: object) -> RoundStats:
    fields = {
        "peer": peer, "direction": direction, "round": 6, "latency_s": 0.25, "passes": 2, "frames_total": 42,
        "frames_sent": 50, "frames_delivered": 41, "stale": 0, "duplicate": 1, "tolerance": 0.05, "in_clr": False,
        "early_stop": True,
    }
    return RoundStats(**(fields | changes))


def table(folder: RunFolder, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder.path / f"{name}.parquet")


# --- the folder ---


def test_a_new_folder_says_that_it_runs(folder):
    run = folder.read()
    assert (run["format"], run["status"], run["error"], run["transport"]) == (1, "running", None, "mlt")
    assert folder.scenario() == scenario(
        {"at": {"iteration": 3}, "duration": "2 iterations", "selector": ["w2"]},
        {"at": {"iteration": 8}, "direction": "to_worker"},
    )


def test_an_update_changes_what_it_names_and_leaves_no_other_file(folder):
    before = folder.read()
    folder.update(status="failed", error="w1: größer")
    assert folder.read() == before | {"status": "failed", "error": "w1: größer"}
    assert {path.name for path in folder.path.iterdir()} == {"run.json", "nodes", "logs"}


def test_a_complete_run_is_replaced_only_when_told_to(folder):
    folder.update(status="complete")
    (folder.path / "rounds.parquet").write_text("old")
    with pytest.raises(ResultsError, match=r"mlt-s1 holds a complete run; give --overwrite"):
        folder.create(False, transport="new")
    assert folder.read()["status"] == "complete"
    folder.create(True, transport="new")
    assert folder.read() == {"format": 1, "status": "running", "error": None, "transport": "new"}
    assert not (folder.path / "rounds.parquet").exists()


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_an_incomplete_run_is_replaced(folder, status):
    folder.update(status=status)
    folder.create(False, transport="new")
    assert folder.read()["transport"] == "new"


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ResultsError, match="is not a run; give --out"):
        RunFolder(tmp_path).create(True)
    assert (tmp_path / "thesis.tex").exists()


# --- the tables ---


def test_rows_of_all_processes_become_sorted_tables(folder):
    server, first, second = (NodeLog(folder.path, node) for node in ("srv", "w1", "w2"))
    for iteration in (1, 0):
        server.row("norm", iteration=iteration, gradient_norm=iteration + 0.5)
        for log, name in ((second, "w2"), (first, "w1")):
            server.round(iteration, stats(name, "broadcast"))
            log.round(iteration, stats(name, "reduce", passes=iteration + 3))
            log.row("iteration", iteration=iteration, worker=name, loss=1.0, compute_s=0.1, communication_s=0.5,
                    total_s=0.6)
    for log, name in ((first, "w1"), (second, "w2")):
        log.row("eval", iteration=2, epoch=0, worker=name, metric="accuracy", value=0.5)
    NodeLog(folder.path, "engine").row("drift", iteration=2, worker="w2", replica_drift=0.125)
    folder.collect()

    rounds = table(folder, "rounds")
    assert list(rounds.columns) == list(ROUND_COLUMNS)
    keys = list(zip(rounds["iteration"], rounds["worker"], rounds["direction"], strict=True))
    assert keys == sorted((i, w, d) for i in (0, 1) for w in ("w1", "w2") for d in ("reduce", "broadcast"))
    assert rounds.loc[rounds["direction"] == "reduce", "passes"].tolist() == [3, 3, 4, 4]
    assert rounds["early_stop"].all()
    iterations = table(folder, "iterations")
    assert iterations["gradient_norm"].tolist() == [0.5, 0.5, 1.5, 1.5]
    evals = table(folder, "evals").set_index("worker")
    assert evals["replica_drift"]["w2"] == 0.125
    assert pd.isna(evals["replica_drift"]["w1"]), "nobody measured it"
    assert not (folder.path / "nodes").exists()


def test_a_round_is_in_a_burst_when_an_event_hit_its_link_and_direction(folder):
    log = NodeLog(folder.path, "srv")
    for iteration in range(12):
        for worker in ("w1", "w2", "w3"):
            for direction in ("reduce", "broadcast"):
                log.round(iteration, stats(worker, direction))
    folder.collect()
    rounds = table(folder, "rounds")
    hit = rounds[rounds["burst"]]
    assert set(zip(hit["iteration"], hit["worker"], hit["direction"], strict=True)) == {
        (3, "w2", "reduce"), (4, "w2", "reduce"),
        (8, "w1", "broadcast"), (8, "w2", "broadcast"), (8, "w3", "broadcast"),
    }


def test_a_line_cut_off_by_a_kill_costs_that_line_only(folder):
    NodeLog(folder.path, "w1").round(0, stats("w1", "reduce"))
    with (folder.path / "nodes" / "w1.jsonl").open("a") as file:
        file.write('{"kind": "round", "iteration": 1, "work')
    folder.collect()
    assert table(folder, "rounds")["iteration"].tolist() == [0]


def test_rows_are_on_disk_at_once(folder):
    log = NodeLog(folder.path, "w1")
    log.row("norm", iteration=0, gradient_norm=1.0)
    line = (folder.path / "nodes" / "w1.jsonl").read_text()
    assert json.loads(line) == {"kind": "norm", "iteration": 0, "gradient_norm": 1.0}


@pytest.mark.parametrize(
    ("name", "columns"), [("rounds", ROUND_COLUMNS), ("iterations", ITERATION_COLUMNS), ("evals", EVAL_COLUMNS)]
)
def test_a_run_that_measured_nothing_has_empty_tables_of_the_same_types(folder, name, columns):
    folder.collect()
    empty = table(folder, name)
    assert empty.empty
    assert {column: str(kind) for column, kind in empty.dtypes.items()} == columns
