"""`dblp run --capture` and `dblp pcap`, end to end: the wire, the records and the injector say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from console import Dblp, engine_or_skip
from test_pcap import agree_with_scapy
from tiny import DOCUMENT

from analysis import proof

BURST = """\
events:
  - {action: loss, loss: 50%, at: {iteration: 1}, duration: 1 iteration, selector: workers, direction: both}
"""


def finish(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the program to its end: exit status and output."""
    program = Dblp(folder, *arguments)
    try:
        return program.wait(), program.output
    finally:
        program.end()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured run of three iterations, the second under a burst."""
    engine = engine_or_skip("mininet")
    folder = tmp_path_factory.mktemp("capture")
    (folder / "my.yaml").write_text(DOCUMENT + BURST)
    status, output = finish(
        folder, "run", "my.yaml", "--engine", engine, "--capture", "--out", "runs",
        "--set", "topology.workers=2", "--set", "workload.iterations=3", "--set", "workload.iterations_per_epoch=3",
        "--set", "transports={dblp: {tolerance: {policy: fixed, p: 10%}}}",
    )
    assert status == 0, output
    return folder / "runs" / "tiny" / "dblp-s1"


@pytest.mark.root
def test_wire_records_and_injector_agree(run: Path) -> None:
    drops = json.loads((run / "captures" / "capture.json").read_text())
    assert sorted(drops) == ["s1-srv", "s1-w1", "s1-w2"]
    assert not any(kind["dropped"] for kinds in drops.values() for kind in kinds.values())
    evidence = proof.examine([run])
    assert evidence.differences == []
    assert len(evidence.rounds) == len(pd.read_parquet(run / "rounds.parquet")) == 12
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    counted = {
        (each["host"], proof.DIRECTION_OF[each["direction"]]): (each["seen"], each["dropped"])
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
def test_scapy_reads_the_same_captures(run: Path) -> None:
    for path in sorted((run / "captures").glob("*.pcap")):
        assert agree_with_scapy(path) > 0


@pytest.mark.root
def test_the_program_prints_the_rounds_and_fails_on_a_difference(run: Path) -> None:
    status, output = finish(run, "pcap", ".", "--json")
    assert status == 0, output
    assert len(json.loads(output)["rounds"]) == 12
    assert "Wire and records agree in all 12 rounds" in finish(run, "pcap", "captures")[1]
    records = pd.read_parquet(run / "rounds.parquet")
    try:
        records.assign(frames_sent=records["frames_sent"] + 1).to_parquet(run / "rounds.parquet")
        status, output = finish(run, "pcap", ".")
    finally:
        records.to_parquet(run / "rounds.parquet")
    assert status == 1
    assert "frames_sent: wire" in output
    assert "unexplained" in output


def test_engine_local_has_no_switch_to_look_at(tmp_path: Path) -> None:
    status, output = finish(tmp_path, "run", "examples/demo", "--engine", "local", "--capture", "--out", "runs")
    assert status == 2
    assert "error: --capture looks at the ports of a switch, which engine local has not" in output
    assert not (tmp_path / "runs").exists()


def test_what_is_no_capture_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "odd.pcap").write_bytes(b"no capture")
    status, output = finish(tmp_path, "pcap", ".")
    assert status == 2
    assert output == "error: odd.pcap: not a pcap file\n"
