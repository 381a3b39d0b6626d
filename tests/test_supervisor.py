"""The engines' common part, with made-up nodes: their start, their end, and who is blamed when one fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from leftovers import alive
from tiny import scenario

from protocol.config import WORKER_PORT_OFFSET
from testbed.bursts.local import LocalInjector
from testbed.engines import supervisor
from testbed.engines.supervisor import Interrupted, RunFailed, Supervisor, engine_main
from testbed.results import NODES, RunFolder
from testbed.training import data

# What a node of a run has: its name in argv[1], and the gate.
PRELUDE = "import os, signal, sys, time; from testbed.bursts.gate import GateClient\n"
JOIN = PRELUDE + "gate = GateClient('gate.sock', sys.argv[1])\n"
SERVER = JOIN + "gate.report(port=1)\n"
GOOD_SERVER = SERVER + "gate.close()"
GOOD = JOIN + "gate.report(iteration=0, loss=1.0, latency_s=0.1); gate.close()"
GOES_ON = "; time.sleep(600)"


class FakeParent:
    """Keeps the news."""

    def __init__(self) -> None:
        self.news: list[dict[str, Any]] = []

    def tell(self, **fields: Any) -> None:
        self.news.append(fields)


class Nodes:
    """Starts these programs in place of the real nodes."""

    def __init__(self, **programs: str) -> None:
        self.programs, self.arguments = programs, {}
        self.processes: dict[str, subprocess.Popen] = {}

    def spawn(self, name: str, argv: list[str], output: TextIO) -> subprocess.Popen:
        self.arguments[name] = argv[argv.index("testbed.training.loop") + 1 :]
        process = subprocess.Popen([sys.executable, "-c", self.programs[name], name], stdout=output, stderr=output)
        self.processes[name] = process
        return process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    plan = scenario({"at": {"iteration": 3}}, topology={"workers": 2, "link": {"rate": "20mbit"}})
    run.create(False, scenario=plan.model_dump(mode="json"), server_host="127.0.0.1", transport="mlt", seed=1)
    monkeypatch.chdir(run.path)
    monkeypatch.setattr(supervisor, "ERROR_GRACE", 1.0)
    return RunFolder(Path("."))


def supervise(folder: RunFolder, **programs: str) -> tuple[Nodes, FakeParent]:
    nodes, parent = Nodes(**programs), FakeParent()
    try:
        Supervisor(folder, parent, LocalInjector(folder.path / NODES, ("w1",)), nodes.spawn).run()
    finally:
        assert not [name for name, process in nodes.processes.items() if alive(process.pid)]
    return nodes, parent


def events() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]


def test_a_run_is_over_when_all_nodes_have_done_their_part(folder):
    nodes, parent = supervise(folder, srv=GOOD_SERVER, w1=GOOD, w2=GOOD)
    assert nodes.arguments == {
        "srv": [".", "srv", "127.0.0.1:0"], "w1": [".", "w1", "127.0.0.1:1"], "w2": [".", "w2", "127.0.0.1:1"],
    }
    assert {news["node"] for news in parent.news if news.get("iteration") == 0} == {"w1", "w2"}
    assert [line["kind"] for line in events()] == ["start", "end"]
    assert {(count["host"], count["direction"]) for count in events()[-1]["counters"]} == {
        ("w1", "to_server"), ("w1", "to_worker"),
    }
    assert not Path("gate.sock").exists()


def test_facts_about_the_model_come_into_the_record(folder):
    facts = "gate.report(model=dict(name='digits_cnn', frames=42, device='cpu')); gate.close()"
    supervise(folder, srv=GOOD_SERVER, w1=JOIN + facts, w2=GOOD)
    run = folder.read()
    assert (run["device"], run["model"]) == ("cpu", {"name": "digits_cnn", "frames": 42})


def test_a_killed_node_is_blamed_though_another_fails_because_of_it(folder):
    killed = JOIN + "gate.report(iteration=4); open('dying', 'w'); os.kill(os.getpid(), signal.SIGKILL)"
    noticing = SERVER + (
        "while not os.path.exists('dying'): time.sleep(0.01)\n"
        "gate.report(error='lost w2 in round 10'); sys.exit(1)"
    )
    with pytest.raises(RunFailed, match=r"^w2 was killed by SIGKILL in iteration 5$"):
        supervise(folder, srv=noticing, w1=JOIN + GOES_ON[2:], w2=killed)


def test_a_node_s_own_error_is_told(folder):
    port = "gate.report(error='UDP port 52352 on 10.0.0.2 is in use; end the program that holds it'); sys.exit(1)"
    with pytest.raises(RunFailed, match=r"^w1 failed in iteration 0: UDP port 52352 on 10.0.0.2 is in use; end"):
        supervise(folder, srv=SERVER + GOES_ON[2:], w1=JOIN + port, w2=JOIN + GOES_ON[2:])


def test_a_node_that_said_nothing_is_quoted_from_its_log(folder):
    with pytest.raises(RunFailed, match=r"^w1 failed in iteration 0: OSError: no space left$"):
        supervise(folder, srv=SERVER + GOES_ON[2:], w1="raise OSError('no space left')", w2=JOIN + GOES_ON[2:])


def test_a_server_that_fails_before_it_has_a_port_is_no_endless_wait(folder):
    with pytest.raises(RunFailed, match=r"^srv failed in iteration 0: no output; see logs/srv.log$"):
        supervise(folder, srv="import sys; sys.exit(3)", w1=GOOD, w2=GOOD)


def test_an_interruption_takes_the_nodes_along(folder, monkeypatch):
    monkeypatch.setattr(supervisor, "STOP_GRACE", 0.5)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    deaf = JOIN + "signal.signal(signal.SIGTERM, signal.SIG_IGN); gate.report(iteration=0)" + GOES_ON
    try:
        timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGALRM))
        timer.start()
        with pytest.raises(Interrupted):
            supervise(folder, srv=SERVER + GOES_ON[2:], w1=deaf, w2=JOIN + GOES_ON[2:])
    finally:
        timer.cancel()
        signal.signal(signal.SIGALRM, before)


def test_the_drift_of_the_replicas_is_measured_in_units_of_the_way_they_came(folder, monkeypatch):
    monkeypatch.setattr(supervisor, "DRIFT_BLOCK", 1)

    def save(iteration: int, worker: str, *values: float) -> None:
        np.save(Path(NODES) / f"parameters-{iteration}-{worker}.npy", np.array(values, np.float32))

    save(0, "w1", 1, 1)
    save(0, "w2", 1, 1)
    save(6, "w1", 4, 2)      # the mean (4, 5) is 5 from the start, each replica 3 from the mean
    save(6, "w2", 4, 8)
    save(12, "w1", 9, 9)      # w2's is still to come
    supervise(folder, srv=GOOD_SERVER, w1=GOOD, w2=GOOD)
    rows = [json.loads(line) for line in (Path(NODES) / "engine.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["worker"]) for row in rows] == [(6, "w1"), (6, "w2")]
    assert [row["replica_drift"] for row in rows] == pytest.approx([0.6, 0.6])
    kept = {path.name for path in Path(NODES).glob("*.npy")}
    assert kept == {"parameters-0-w1.npy", "parameters-0-w2.npy", "parameters-12-w1.npy"}


def raising(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "status", "text"),
    [
        (RunFailed("w2 was killed"), 1, "failed", "w2 was killed"),
        (ValueError("a bug"), 1, "failed", "ValueError: a bug"),
        (Interrupted(), 130, "interrupted", "interrupted by the user"),
    ],
)
def test_the_end_of_an_engine_is_in_the_record_and_in_its_status(folder, error, code, status, text):
    parent = FakeParent()
    assert engine_main(folder, parent, raising(error)) == code
    run = folder.read()
    assert (run["status"], run["error"]) == (status, text)
    assert parent.news == ([{"error": text}] if status == "failed" else [])


def test_an_engine_claims_no_complete_run_before_its_tables_are_made(folder):
    assert engine_main(folder, FakeParent(), lambda: None) == 0
    assert folder.read()["status"] == "running", "whoever makes the tables says so"


def test_the_port_of_another_program_is_named_in_the_run_s_error(folder):
    """With real nodes: the engine passes on what the transport says."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, Path("engine.log").open("w") as log:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        plan = scenario(topology={"workers": 1, "link": {"rate": "20mbit"}}).model_dump(mode="json")
        base = port - WORKER_PORT_OFFSET
        folder.update(scenario=plan, engine="local", dataset=asdict(data.resolve(["digits"])), data_port_base=base)
        command = [sys.executable, "-m", "testbed.engines.local", "."]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log) as engine:
            assert engine.wait(120) == 1
    run = folder.read()
    assert run["status"] == "failed"
    assert f"w1 failed in iteration 0: UDP port {port} on 127.0.0.1 is in use; end the program" in run["error"]
