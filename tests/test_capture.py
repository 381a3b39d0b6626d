"""`dblp run --capture` and `dblp pcap`, end to end: the wire, the records and the injector say the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from private_net import needs_root
from test_pcap import agree_with_scapy
from tiny import DOCUMENT

from analysis import wire
from testbed import doctor

ROOT = Path(__file__).resolve().parent.parent
BURST = """\
events:
  - {action: loss, loss: 50%, at: {iteration: 1}, duration: 1 iteration, selector: workers, direction: both}
"""


def dblp(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured run of three iterations, the second under a burst."""
    ready, reason = doctor.mininet_ready()
    if not ready:
        pytest.skip(f"engine mininet cannot run: {reason}")
    folder = tmp_path_factory.mktemp("capture")
    (folder / "tiny.yaml").write_text(DOCUMENT + BURST)
    result = dblp(
        "run", str(folder / "tiny.yaml"), "--engine", "mininet", "--capture", "--out", str(folder),
        "--set", "workload.iterations=3", "--set", "workload.iterations_per_epoch=3",
        "--set", "transports={dblp: {tolerance: {policy: fixed, p: 10%}}}",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "tiny" / "dblp-s1"


@pytest.mark.root
@needs_root
def test_wire_records_and_injector_agree(run: Path) -> None:
    drops = json.loads((run / "captures" / "capture.json").read_text())
    assert sorted(drops) == ["s1-srv", "s1-w1", "s1-w2", "s1-w3"]
    assert not any(kind["dropped"] for kinds in drops.values() for kind in kinds.values())
    evidence = wire.examine([run])
    assert evidence.differences == []
    assert len(evidence.rounds) == len(pd.read_parquet(run / "rounds.parquet")) == 18
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    counted = {
        (each["host"], wire.DIRECTION_OF[each["direction"]]): (each["seen"], each["dropped"])
        for each in last["counters"]
    }
    for link in evidence.links:
        rounds = [each for each in evidence.rounds if (each.worker, each.direction) == (link.worker, link.direction)]
        seen, dropped = counted[link.worker, link.direction]
        assert link.frames_lost == sum(each.lost for each in rounds) == dropped
        assert sum(each.frames_sent for each in rounds) == seen
        assert all(each.lost == 0 for each in rounds if each.iteration != 1)
    assert sum(each.lost for each in evidence.rounds) > 0


@pytest.mark.root
@needs_root
def test_scapy_reads_the_same_captures(run: Path) -> None:
    for path in sorted((run / "captures").glob("*.pcap")):
        assert agree_with_scapy(path) > 0


@pytest.mark.root
@needs_root
def test_the_program_prints_the_rounds_and_fails_on_a_difference(run: Path) -> None:
    good = dblp("pcap", str(run), "--json")
    assert good.returncode == 0, good.stderr
    assert len(json.loads(good.stdout)["rounds"]) == 18
    assert "Wire and records agree in all 18 rounds" in dblp("pcap", str(run)).stdout
    records = pd.read_parquet(run / "rounds.parquet")
    try:
        records.assign(frames_sent=records["frames_sent"] + 1).to_parquet(run / "rounds.parquet")
        bad = dblp("pcap", str(run))
    finally:
        records.to_parquet(run / "rounds.parquet")
    assert bad.returncode == 1
    assert "frames_sent: wire" in bad.stdout
    assert "unexplained" in bad.stdout


def test_engine_local_has_no_switch_to_look_at(tmp_path: Path) -> None:
    result = dblp("run", "examples/demo", "--engine", "local", "--capture", "--out", str(tmp_path))
    assert result.returncode == 2
    assert "error: --capture looks at the ports of a switch, which engine local has not" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_capture_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "odd.pcap").write_bytes(b"no capture")
    result = dblp("pcap", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "odd.pcap: not a pcap file" in result.stderr
