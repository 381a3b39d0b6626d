"""The benchmark's floor and summary, and one small run of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest
from private_net import needs_root

from analysis.bench import floor, main, summarise
from testbed import bench
from testbed.bench import InTurn

# 20 MB are 13,737 frames of 1456 bytes of data, 1514 bytes on the wire each.
FRAME_SECONDS = 1514 * 8 / 1e9


def setting(workers: int = 3, loss: float = 0.0) -> dict:
    """As bench.json holds it."""
    return {"workers": workers, "size": 5_000_000, "rate": 1e9, "loss": loss, "tolerances": [0.0, 0.008, 0.408],
            "rounds": 2}


def test_the_floor_is_the_server_link_with_what_must_cross_it():
    assert floor(setting(), "reduce", 0.0) == pytest.approx(3 * 13_737 * FRAME_SECONDS)
    assert floor(setting(), "broadcast", 0.0) == floor(setting(), "reduce", 0.0)
    assert floor(setting(), "reduce", 0.408) == pytest.approx(3 * (13_737 - 5_604) * FRAME_SECONDS)


def test_the_floor_is_the_workers_link_where_that_must_carry_more():
    assert floor(setting(loss=0.5), "reduce", 0.0) == floor(setting(), "reduce", 0.0), "2 crossings here, 3 there"
    assert floor(setting(loss=0.75), "reduce", 0.0) == pytest.approx(4 * 13_737 * FRAME_SECONDS)
    assert floor(setting(loss=0.75), "broadcast", 0.0) == floor(setting(), "broadcast", 0.0), "lost towards the server"


def test_the_summary_leaves_the_warm_up_out():
    steps = [
        {"step": step, "direction": direction, "tolerance": (0.0, 0.008, 0.408)[step % 3], "latency_s": latency}
        for step in range(12)
        for direction in ("reduce", "broadcast")
        for latency in ([9.0] if step < 6 else [1.0, 2.0] if step < 9 else [3.0])
    ]
    table = summarise(pd.DataFrame(steps), setting())
    assert list(zip(table["direction"], table["tolerance"], strict=True)) == [
        (direction, p) for direction in ("reduce", "broadcast") for p in (0.0, 0.008, 0.408)
    ]
    assert set(table["rounds"]) == {3}
    assert set(table["median_s"]) == {2.0}
    assert table["p99_s"].tolist() == pytest.approx([2.98] * 6)
    assert (table["ratio"] * table["floor_s"]).tolist() == pytest.approx([2.0] * 6)


def test_the_tolerances_take_turns():
    schedule = InTurn((0.0, 0.1, 0.2))
    seen = []
    for step in range(5):
        seen.append(schedule.tolerance)
        schedule.observe(step, 1.0)
    assert seen == [0.0, 0.1, 0.2, 0.0, 0.1]


@pytest.mark.root
@needs_root
def test_a_small_benchmark_runs_and_leaves_its_raw_rounds(tmp_path):
    options = ["--megabytes", "0.06", "--gbit", "0.1", "--loss", "0.2", "--rounds", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", bench.__name__, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    main(tmp_path)
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["rounds"] for row in record["table"]] == [6] * 6
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    steps = 3 * (2 + bench.WARM_UP)
    assert len(rounds) == 2 * 3 * steps
    assert set(rounds["peer"]) == {"w1", "w2", "w3"}
    assert (rounds["latency_s"] > 0).all()
