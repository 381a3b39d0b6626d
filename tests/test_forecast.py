"""What earlier runs tell of the time that a batch takes, and how it is corrected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import scenario

from testbed import runner
from testbed.forecast import Forecast, duration, paces


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def batch() -> list[runner.Job]:
    return runner.jobs(scenario(seeds=[1, 2]), Path("out"))      # dblp, mlt, dblp, mlt of 12 iterations each


def known(**seconds: float) -> dict:
    return {("tiny", None, transport): s / 12 for transport, s in seconds.items()}


def test_without_earlier_runs_the_time_is_unknown_until_some_iterations_are_done():
    clock, jobs = Clock(), batch()
    forecast = Forecast(jobs, {}, clock)
    assert str(forecast) == "time unknown"
    forecast.begin(jobs[0])
    clock.now = 5
    forecast.iteration(1)
    clock.now = 7
    forecast.iteration(2)
    assert forecast.remaining() == (2 * 10, 3)
    clock.now = 20
    forecast.end(complete=True)
    assert forecast.remaining() == (pytest.approx(20), 2), "the other seed of the same transport"


def test_runs_that_end_correct_what_is_expected_of_the_others():
    clock, jobs = Clock(), batch()
    forecast = Forecast(jobs, known(dblp=10, mlt=20), clock)
    assert forecast.remaining() == (pytest.approx(60), 0)
    forecast.begin(jobs[0])
    clock.now = 4
    assert forecast.remaining() == (pytest.approx(56), 0)
    clock.now = 20
    forecast.end(complete=True)
    assert forecast.remaining() == (pytest.approx(100), 0), "this machine takes twice as long"
    assert str(forecast) == "about 2 min"


def test_a_failed_run_tells_nothing():
    clock, jobs = Clock(), batch()
    forecast = Forecast(jobs, known(dblp=10, mlt=20), clock)
    forecast.begin(jobs[0])
    clock.now = 1
    forecast.end(complete=False)
    assert forecast.remaining() == (pytest.approx(50), 0)


def test_only_complete_runs_count_and_the_first_folder_before_the_second(tmp_path):
    for folder, status, took in (("a", "complete", 8.0), ("b", "complete", 16.0), ("c", "failed", 1.0)):
        for transport in ("mlt",) if folder != "c" else ("dblp",):
            path = tmp_path / folder / "tiny" / f"{transport}-s1"
            path.mkdir(parents=True)
            run = {"status": status, "profile": None, "transport": transport, "duration_s": took}
            (path / "run.json").write_text(json.dumps(run | {"scenario": scenario().model_dump(mode="json")}))
    (tmp_path / "a" / "tiny" / "half").mkdir()
    (tmp_path / "a" / "tiny" / "half" / "run.json").write_text("{")
    assert paces([tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "none"]) == {("tiny", None, "mlt"): 8 / 12}


@pytest.mark.parametrize(("seconds", "text"), [(40, "40 s"), (720, "12 min"), (11520, "3.2 h")])
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text
