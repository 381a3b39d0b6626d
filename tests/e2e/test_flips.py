"""Bursts through the console program and engine mininet hit their iterations to the frame, over 100 flips.

The injector is the one that the kernel offers: BPF in most kernels, netem in the guest of `make test-netem`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from private_net import needs_root
from scipy import stats

from testbed import doctor
from testbed.bursts import choose_injector

pytestmark = [pytest.mark.root, needs_root]
DBLP = [sys.executable, "-m", "testbed.cli"]
LOSS, ITERATIONS = 0.5, 50

# 25 bursts in each of two runs: 100 flips.
SCENARIO = f"""\
name: flips
topology: {{workers: 2, link: {{rate: 100mbit}}}}
workload:
  model: digits_cnn
  batch_size: 16
  iterations: {ITERATIONS}
  iterations_per_epoch: {ITERATIONS}
  optimizer: {{lr: 0.05}}
events:
  - {{action: loss, loss: {LOSS:.0%}, at: {{every: 2, start: 1}}, duration: 1 iteration, direction: to_server}}
transports:
"""
TRANSPORTS = {
    "dblp": "  dblp: {tolerance: {policy: phase_aware, low: 5%, high: 40.8%, eta: 0.5, frequency: 10}}\n",
    "mlt": "  mlt: {tolerance: {policy: fixed, p: 5%}}\n",
}


@pytest.fixture(scope="module", params=TRANSPORTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one transport; DBLP_TEST_RESULTS says where to keep it."""
    ready, reason = doctor.mininet_ready()
    if not ready:
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("scenario") / "flips.yaml"
    path.write_text(SCENARIO + TRANSPORTS[request.param])
    out = Path(os.environ.get("DBLP_TEST_RESULTS") or tmp_path_factory.mktemp("results"))
    done = subprocess.run([*DBLP, "run", str(path), "--engine", "mininet", "--out", str(out), "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [run["status"] for run in json.loads(done.stdout)] == ["complete"]
    return out / "flips" / f"{request.param}-s1"


def test_bursts_hit_every_frame_of_their_iterations_and_no_other(run: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    flips = [event for event in events if event["kind"] in ("burst_start", "burst_stop")]
    assert [flip["iteration"] for flip in flips] == list(range(1, ITERATIONS + 1))
    assert [flip["kind"] for flip in flips] == ["burst_start", "burst_stop"] * (ITERATIONS // 2)

    rounds = pd.read_parquet(run / "rounds.parquet").query("direction == 'reduce'")
    sent = rounds.set_index(["iteration", "worker"])["frames_sent"]
    seen, dropped = (pd.DataFrame([counters(event, field) for event in (events[0], *flips)]).diff().iloc[1:]
                     for field in ("seen", "dropped"))
    for iteration in range(ITERATIONS):
        for worker in ("w1", "w2"):
            # Iteration k lies between flip k and flip k + 1. All of its frames, and no frame of its neighbours, were
            # drawn for under the loss that was in force there.
            assert seen.iloc[iteration][worker] == sent[iteration, worker], (iteration, worker)
    assert (dropped.iloc[0::2] == 0).all(axis=None), "a frame was lost outside the bursts"
    bursts = slice(1, None, 2)
    frames, lost = int(seen.iloc[bursts].to_numpy().sum()), int(dropped.iloc[bursts].to_numpy().sum())
    low, high = stats.binom.interval(0.9999, frames, LOSS)
    assert low <= lost <= high


def counters(event: dict[str, Any], field: str) -> dict[str, int]:
    """A counter of each worker's link, cumulative."""
    return {entry["host"]: entry[field] for entry in event["counters"]}


def test_the_injector_on_record_is_the_one_that_the_kernel_offers(run: Path) -> None:
    assert json.loads((run / "run.json").read_text())["injector"] == choose_injector().name
