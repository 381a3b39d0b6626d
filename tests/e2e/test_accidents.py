"""What kills, signals and failures in the middle of a run leave behind: a record that says so, and nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from console import Dblp, engine_or_skip
from leftovers import eventually
from tiny import DOCUMENT

from testbed.topology import worker_names

# At this rate an iteration takes about a second: the run is in the middle of a round most of the time, and would
# take half an hour.
SLOW = DOCUMENT.replace("20mbit", "RATE").replace("workers: 3", "workers: WORKERS").replace("12", "2000")
MLT = next(line for line in DOCUMENT.splitlines(keepends=True) if "mlt:" in line)
BURST = "events: [{action: loss, loss: 70%, at: {iteration: 2}, duration: 1000 iterations}]\n"


class Job:
    """A run in progress, in iteration 3 or later and in a burst: its program and its folder."""

    def __init__(self, folder: Path, engine: str, workers: int, scenario: str) -> None:
        text = scenario.replace("WORKERS", str(workers)).replace("RATE", f"{workers / 2:g}mbit")
        (folder / "my.yaml").write_text(text)
        self.workers = workers
        self.path = folder / "results" / "tiny" / "dblp-s1"
        self.program = Dblp(folder, "run", "my.yaml", "--engine", engine)
        try:
            self.program.reach(self.path, 2, worker_names(workers))
        except BaseException:
            self.program.end()
            raise

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.path / "run.json").read_text())

    def measured(self) -> int:
        """Iterations of which the tables have all workers' gradients."""
        rounds = pd.read_parquet(self.path / "rounds.parquet")
        pd.read_parquet(self.path / "evals.parquet")
        iterations = pd.read_parquet(self.path / "iterations.parquet")
        assert iterations["iteration"].max() <= rounds["iteration"].max()
        return int((iterations.groupby("iteration")["worker"].nunique() == self.workers).sum())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a run."""
    jobs: list[Job] = []

    def start(engine: str, workers: int, scenario: str = SLOW + BURST) -> Job:
        jobs.append(Job(tmp_path, engine_or_skip(engine), workers, scenario))
        return jobs[-1]

    yield start
    for job in jobs:
        job.program.end()


@pytest.mark.parametrize("engine", ["mininet", "local"])
def test_a_killed_worker_is_named_and_the_run_has_failed(start, engine):
    job = start(engine, 2, SLOW.replace(MLT, "") + BURST)
    os.kill(job.program.node("w2"), signal.SIGKILL)
    named = "w2 was killed by SIGKILL in iteration "
    assert eventually(lambda: named in job.program.output), job.program.output
    assert job.program.wait() == 1, job.program.output
    assert job.program.left() == ""
    assert job.record["status"] == "failed"
    assert job.record["error"].startswith(named)
    assert job.measured() >= 3


def test_a_failed_run_makes_the_program_fail(tmp_path):
    """A batch that no worker has the images for: the worker finds it, and reports."""
    (tmp_path / "my.yaml").write_text(DOCUMENT.replace(MLT, "").replace("workers: 3", "workers: 1"))
    program = Dblp(tmp_path, "run", "my.yaml", "--engine", "local", "--set", "workload.batch_size=2000")
    try:
        assert program.wait() == 1
    finally:
        program.end()
    run = json.loads((tmp_path / "results" / "tiny" / "dblp-s1" / "run.json").read_text())
    assert run["status"] == "failed"
    assert "workload.batch_size is 2000, but each of 1 workers has only 1437 samples of digits" in run["error"]
    assert run["error"] in " ".join(program.output.split())
    assert program.left() == ""


@pytest.mark.parametrize(("engine", "number"), [("mininet", signal.SIGINT), ("local", signal.SIGTERM)])
def test_an_interrupted_run_keeps_what_it_measured_and_says_so(start, engine, number):
    job = start(engine, 1)
    job.program.process.send_signal(number)
    assert job.program.wait() == 130, job.program.output
    assert job.program.left() == ""
    assert (job.record["status"], job.record["error"]) == ("interrupted", "interrupted by the user")
    assert job.record["finished"]
    assert job.measured() >= 3
    assert not (job.path.parent / "mlt-s1").exists(), "no other run was begun"
    assert "interrupted" in job.program.output
    lines = [json.loads(line) for line in (job.path / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "burst_start", "burst_stop", "end"]


@pytest.mark.parametrize("engine", ["mininet", "local"])
def test_nothing_is_left_of_a_killed_program_and_nothing_claimed(start, engine):
    job = start(engine, 1)
    job.program.process.kill()
    assert job.program.left() == ""
    assert job.record["status"] == "interrupted"
