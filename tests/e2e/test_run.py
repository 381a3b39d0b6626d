"""A small scenario with two bursts over both engines, from `dblp run` to `dblp report`, as a user runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from console import Dblp, engine_or_skip
from scipy import stats
from tiny import DOCUMENT

import analysis.load
from protocol.tolerance import allowed_missing
from testbed import environment

WORKERS, ITERATIONS, FRAMES = ["w1", "w2", "w3"], 12, 34
LOW, HIGH = 0.05, 0.408
# burst number -> (iterations, loss, links)
BURSTS = {
    1: ([7], 0.7, [(worker, "to_server") for worker in WORKERS]),
    2: ([9, 10], 0.5, [("w2", "to_worker")]),
}
EVENTS = """\
events:
  - {action: loss, loss: 70%, at: {iteration: 7}, duration: 1 iteration}
  - {action: loss, loss: 50%, at: {iteration: 9}, duration: 2 iterations, selector: [w2], direction: to_worker}
"""
DIRECTION = {"reduce": "to_server", "broadcast": "to_worker"}


@pytest.fixture(scope="module", params=["mininet", "local"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dblp]:
    """The program after it has run both transports, for all tests of this module."""
    engine = engine_or_skip(request.param)
    folder = tmp_path_factory.mktemp(engine)
    (folder / "my.yaml").write_text(DOCUMENT + EVENTS)
    dblp = Dblp(folder, "run", "my.yaml", "--engine", engine, "--out", "runs")
    try:
        assert dblp.wait() == 0, dblp.output
        yield dblp
    finally:
        dblp.end()


@pytest.fixture(params=["dblp", "mlt"])
def run(request: pytest.FixtureRequest, program: Dblp) -> Path:
    """The folder of one transport's run."""
    return program.folder / "runs" / "tiny" / f"{request.param}-s1"


@pytest.fixture
def rounds(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "rounds.parquet")


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text())


def test_the_program_tells_how_it_goes_and_leaves_nothing(program):
    for text in ("1/2 tiny · dblp · seed 1", "2/2 tiny · mlt · seed 1", "70% loss on w1 to_server", "accuracy",
                 "complete after", "Next: dblp report runs/tiny"):
        assert text in program.output
    assert program.left() == ""
    if "engine mininet" in program.output:
        assert len(program.networks) >= 1 + len(WORKERS), "each host should have had a network of its own"


def test_the_record_says_what_was_run_where_and_with_what(run, program):
    made = record(run)
    assert (made["format"], made["status"], made["error"], made["seed"]) == (1, "complete", None, 1)
    assert made["transport"] == run.name.removesuffix("-s1")
    assert made["scenario"]["workload"]["iterations"] == ITERATIONS
    assert made["dataset"]["name"] == "digits"
    assert made["dataset"]["train"] + made["dataset"]["test"] == 1797
    assert (made["model"]["name"], made["model"]["frames"], made["device"]) == ("digits_cnn", FRAMES, "cpu")
    assert made["machine"] == environment.machine()
    assert made["versions"] == environment.versions()
    state = environment.git_state()
    assert (made["git"] or {}).get("commit") == (state or {}).get("commit")
    assert made["started"] < made["finished"]
    assert made["command"] == f"dblp run my.yaml --engine {made['engine']} --out runs"
    if made["engine"] == "local":
        assert (made["injector"], made["links"]) == ("local", None)
        return
    assert made["injector"] in ("netem", "bpf")
    ends = {link["interface"]: link for link in made["links"]}
    assert set(ends) == {end for host in ("srv", *WORKERS) for end in (f"{host}-eth0", f"s1-{host}")}
    assert {link["rate_bps"] for link in ends.values()} == {20e6}


def test_every_gradient_has_its_row(rounds):
    keys = set(zip(rounds["iteration"], rounds["worker"], rounds["direction"], strict=True))
    assert len(rounds) == len(keys)
    assert keys == {(i, w, d) for i in range(ITERATIONS) for w in WORKERS for d in DIRECTION}
    assert set(rounds["frames_total"]) == {FRAMES}


def test_every_round_delivered_what_its_tolerance_asks(rounds):
    missing = rounds["frames_total"] - rounds["frames_delivered"]
    allowed = [allowed_missing(p, FRAMES) for p in rounds["tolerance"]]
    assert (missing >= 0).all()
    assert (missing <= allowed).all()
    assert (rounds["frames_sent"] >= rounds["frames_delivered"]).all()
    assert (rounds["passes"] >= 1).all()
    assert (rounds["latency_s"] > 0).all()


def test_tolerances_are_those_of_the_transport(run, rounds):
    if run.name.startswith("mlt"):
        assert set(rounds["tolerance"]) == {LOW}
        assert not rounds["in_clr"].any()
        return
    assert (rounds["tolerance"] == np.where(rounds["in_clr"], LOW, HIGH)).all()
    start = rounds[(rounds["iteration"] < 2)]
    assert start["in_clr"].all(), "the first regime lasts to the first detection"
    in_burst = rounds[rounds["burst"] & ~rounds["in_clr"]]
    assert (in_burst.groupby("iteration")["frames_delivered"].mean() < FRAMES).all(), "outside a CLR frames are let go"


def test_burst_flags_are_those_of_the_links_that_were_hit(rounds):
    flagged = rounds[rounds["burst"]]
    assert set(zip(flagged["iteration"], flagged["worker"], flagged["direction"].map(DIRECTION), strict=True)) == {
        (iteration, *link) for iterations, _, links in BURSTS.values() for iteration in iterations for link in links
    }


def test_losses_are_those_of_the_scenario_by_the_injector_s_own_counters(run, rounds):
    counters = analysis.load.load(run).counters
    totals = counters.groupby("burst")[["seen", "dropped"]].sum()
    assert totals["dropped"][0] == 0, "a loss outside the bursts"
    for burst, (_, loss, _) in BURSTS.items():
        seen, dropped = totals.loc[burst]
        low, high = stats.binom.interval(0.9999, seen, loss)
        assert low <= dropped <= high, (burst, seen, dropped)


def test_the_injector_saw_every_frame_that_was_sent(run, rounds):
    loaded = analysis.load.load(run)
    if loaded.queues["dropped"].sum():
        pytest.skip("a queue overflowed on this machine")
    counters = loaded.counters
    per_round = rounds.assign(direction=rounds["direction"].map(DIRECTION))
    for burst, (iterations, _, links) in BURSTS.items():
        for host, direction in links:
            mine = per_round[(per_round["worker"] == host) & (per_round["direction"] == direction)]
            sent = mine.loc[mine["iteration"].isin(iterations), "frames_sent"].sum()
            counted = counters[(counters["burst"] == burst) & (counters["host"] == host)]
            assert counted.loc[counted["direction"] == direction, "seen"].sum() == sent, (burst, host)


def test_the_log_of_events_has_each_burst_s_beginning_and_end(run):
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [(line["kind"], line.get("iteration"), line.get("event")) for line in lines] == [
        ("start", None, None), ("burst_start", 7, 0), ("burst_stop", 8, 0),
        ("burst_start", 9, 1), ("burst_stop", 11, 1), ("end", None, None),
    ]


def test_iterations_and_evaluations_are_complete(run):
    iterations = pd.read_parquet(run / "iterations.parquet")
    keys = list(zip(iterations["iteration"], iterations["worker"], strict=True))
    assert keys == [(i, w) for i in range(ITERATIONS) for w in WORKERS]
    assert (iterations["communication_s"] < iterations["total_s"]).all()
    assert (iterations.groupby("iteration")["gradient_norm"].nunique() == 1).all(), "one average for all"
    evals = pd.read_parquet(run / "evals.parquet")
    keys = set(zip(evals["iteration"], evals["epoch"], evals["worker"], evals["metric"], strict=True))
    assert len(keys) == len(evals)
    assert keys == {(i, e, w, m) for i, e in ((6, 0), (12, 1)) for w in WORKERS for m in ("accuracy", "loss")}
    assert np.isfinite(evals["replica_drift"]).all()


def test_only_results_are_left_in_the_folder(run):
    names = {path.name for path in run.iterdir()}
    assert names == {"run.json", "events.jsonl", "logs", "rounds.parquet", "iterations.parquet", "evals.parquet"}
    logs = {path.name for path in (run / "logs").iterdir()}
    assert logs == {f"{name}.log" for name in ("engine", "srv", *WORKERS)}


def test_a_report_is_made_of_it(program):
    report = Dblp(program.folder, "report", "runs", "--out", "pages")
    assert report.wait() == 0, report.output
    text = (program.folder / "pages" / "report.md").read_text()
    assert "Read this first" not in text, text[:1000]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+\.png)\)", text)
    assert "latency-tiny.png" in pictures
    for name in pictures:
        assert (program.folder / "pages" / name).read_bytes().startswith(b"\x89PNG")
