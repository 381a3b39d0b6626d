"""Which engine runs a scenario, and how a run ends whatever its engine process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from leftovers import alive, eventually
from tiny import scenario

from testbed import doctor, runner
from testbed.results import ResultsError, RunFolder
from testbed.runner import EngineError, Interruption, Job, Outcome, Stopped, choose_engine
from testbed.training import data

# Engine processes: argv[1] is the run's folder, as for a real one.
COMPLETES = """
import json, os, pathlib, sys
nodes = pathlib.Path(sys.argv[1], "nodes")
(nodes / "srv.jsonl").write_text(json.dumps({"kind": "norm", "iteration": 0, "gradient_norm": 1.0}) + "\\n")
print(json.dumps({"secret": os.environ["DBLP_SECRET"], "threads": os.environ["OMP_NUM_THREADS"]}), flush=True)
"""
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
FAILS = """
import pathlib, sys
from testbed.results import RunFolder
RunFolder(pathlib.Path(sys.argv[1])).update(status="failed", error="w2 was killed by SIGKILL in iteration 3")
sys.exit(1)
"""
# Ends in order when its parent closes the pipe, as engines do.
WAITS = """
import json, pathlib, sys
from testbed.results import RunFolder
print(json.dumps({"stage": "here"}), flush=True)
sys.stdin.read()
RunFolder(pathlib.Path(sys.argv[1])).update(status="interrupted", error="interrupted by the user")
sys.exit(130)
"""
STUBBORN = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(json.dumps({"pid": os.getpid()}), flush=True)
time.sleep(600)
"""
DATASET = data.DatasetInfo("digits", "a folder", 1437, 360, 10, None, "")


def start(
    monkeypatch: pytest.MonkeyPatch, path: Path, engine: str, news: Any = lambda job, fields: None,
    overwrite: bool = False,
) -> tuple[Outcome | None, dict[str, Any]]:
    """Run a job with this engine process; its outcome (None when it was stopped) and its run.json."""
    monkeypatch.setattr(runner, "engine_command", lambda name, folder: [sys.executable, "-c", engine, str(folder)])
    job = Job(scenario(), "mlt", 1, path / "mlt-s1")
    with Interruption() as interruption:
        try:
            outcome = runner.run_job(job, "local", DATASET, overwrite, news, "dblp run tiny", interruption)
        except Stopped:
            outcome = None
    return outcome, RunFolder(job.path).read()


# --- which runs, which engine ---


def test_transports_take_turns_within_a_seed(tmp_path):
    jobs = runner.jobs(scenario(seeds=[1, 2]), tmp_path)
    assert [(job.transport, job.seed) for job in jobs] == [("dblp", 1), ("mlt", 1), ("dblp", 2), ("mlt", 2)]
    assert jobs[3].path == tmp_path / "tiny" / "mlt-s2"


@pytest.mark.parametrize(
    ("asked", "ready", "chosen"),
    [("auto", True, "mininet"), ("auto", False, "local"), ("mininet", True, "mininet"), ("local", True, "local"),
     ("local", False, "local")],
)
def test_auto_takes_mininet_where_it_can(monkeypatch, asked, ready, chosen):
    monkeypatch.setattr(doctor, "mininet_ready", lambda: (ready, "" if ready else "tool mnexec: not installed"))
    monkeypatch.setattr(runner, "_check_mininet", lambda scenario: None)
    engine, why = choose_engine(asked, scenario())
    assert engine == chosen
    assert ("mnexec" in why) == (asked == "auto" and not ready), "falling back says why, and only then"


@pytest.mark.parametrize("kind", ["tcp", "gloo"])
def test_a_capture_of_what_has_no_frames_is_refused(kind):
    plan = scenario(transports={"udp": {"kind": "udp"}, "other": {"kind": kind}})
    with pytest.raises(EngineError, match=r"transports\.other does not send; leave it out"):
        choose_engine("auto", plan, capture=True)


def test_mininet_where_it_cannot_run_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "mininet_ready", lambda: (False, "root: user id 1000: run it with sudo"))
    with pytest.raises(EngineError, match=r"mininet cannot run: root: .*run it with sudo; or use --engine local"):
        choose_engine("mininet", scenario())


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (scenario({"at": {"iteration": 3}, "protocol": "all"}), "protocol 'all' also loses TCP segments"),
        (scenario(topology={"link": {"rate": "20mbit", "latency": "5ms"}}), "latency needs an emulated link"),
    ],
)
@pytest.mark.parametrize("ready", [True, False])
def test_what_only_mininet_can_do_is_refused_by_local(monkeypatch, plan, text, ready):
    monkeypatch.setattr(doctor, "mininet_ready", lambda: (ready, "" if ready else "no root"))
    monkeypatch.setattr(runner, "_check_mininet", lambda scenario: None)
    with pytest.raises(EngineError, match=text) as raised:
        choose_engine("local", plan)
    assert str(raised.value).endswith("engine mininet can" if ready else "no root")
    if ready:
        assert choose_engine("auto", plan)[0] == "mininet"


# --- how runs end ---


def test_a_complete_run_has_its_tables_and_its_record(tmp_path, monkeypatch):
    told: list[dict] = []
    outcome, run = start(monkeypatch, tmp_path, COMPLETES, lambda job, fields: told.append(fields))
    assert (outcome.status, outcome.error) == ("complete", None)
    assert (run["status"], run["error"], run["engine"], run["command"]) == ("complete", None, "local", "dblp run tiny")
    assert run["dataset"]["name"] == "digits"
    assert run["duration_s"] > 0
    assert run["started"] <= run["finished"]
    assert pd.read_parquet(outcome.job.path / "rounds.parquet").empty
    assert not (outcome.job.path / "nodes").exists()
    assert told[0]["threads"] == "1"


def test_each_run_has_a_secret_of_its_own_that_is_in_no_file(tmp_path, monkeypatch):
    secrets: list[str] = []
    for name in ("a", "b"):
        start(monkeypatch, tmp_path / name, COMPLETES, lambda job, fields: secrets.append(fields["secret"]))
    assert len(set(secrets)) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files for secret in secrets)


def test_an_engine_that_dies_leaves_a_failed_run_that_names_its_log(tmp_path, monkeypatch):
    outcome, run = start(monkeypatch, tmp_path, DIES)
    assert outcome.status == run["status"] == "failed"
    assert "ended with status -9" in run["error"]
    assert str(outcome.job.path / "logs" / "engine.log") in run["error"]
    assert (outcome.job.path / "rounds.parquet").exists()


def test_the_engine_s_own_error_stands(tmp_path, monkeypatch):
    outcome, run = start(monkeypatch, tmp_path, FAILS)
    assert (outcome.status, outcome.error) == ("failed", "w2 was killed by SIGKILL in iteration 3")
    assert (run["status"], run["error"]) == (outcome.status, outcome.error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_engine_in_order(tmp_path, monkeypatch, number):
    outcome, run = start(monkeypatch, tmp_path, WAITS, lambda job, fields: os.kill(os.getpid(), number))
    assert outcome is None
    assert run["status"] == "interrupted"
    assert run["finished"]
    assert (tmp_path / "mlt-s1" / "rounds.parquet").exists(), "what was measured is kept"


def test_a_second_ctrl_c_does_not_hinder_the_first(tmp_path, monkeypatch):
    def impatient(job: Job, fields: dict) -> None:
        # The second comes while the first one's clearing up waits for the engine.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        os.kill(os.getpid(), signal.SIGINT)

    slow = WAITS.replace("sys.stdin.read()", "sys.stdin.read(); import time; time.sleep(0.6)")
    outcome, run = start(monkeypatch, tmp_path, slow, impatient)
    assert outcome is None
    assert run["status"] == "interrupted"
    assert run["finished"]


def test_an_engine_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "STOP_GRACE", 0.2)
    pids: list[int] = []

    def stop(job: Job, fields: dict) -> None:
        pids.append(fields["pid"])
        os.kill(os.getpid(), signal.SIGINT)

    outcome, run = start(monkeypatch, tmp_path, STUBBORN, stop)
    assert outcome is None
    assert (run["status"], run["error"]) == ("interrupted", "interrupted by the user")
    assert not alive(pids[0])


def test_a_signal_after_the_engine_s_end_leaves_the_run_complete_and_starts_no_other(tmp_path, monkeypatch):
    collect = RunFolder.collect

    def late(folder: RunFolder) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        collect(folder)

    monkeypatch.setattr(RunFolder, "collect", late)
    monkeypatch.setattr(runner, "engine_command", lambda name, path: [sys.executable, "-c", COMPLETES, str(path)])
    first, second = (Job(scenario(), "mlt", seed, tmp_path / f"mlt-s{seed}") for seed in (1, 2))
    with Interruption() as interruption:
        arguments = ("local", DATASET, False, lambda job, fields: None, "", interruption)
        assert runner.run_job(first, *arguments).status == "complete"
        with pytest.raises(Stopped):
            runner.run_job(second, *arguments)
    assert not second.path.exists()


def test_signals_are_python_s_own_again_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interruption():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_complete_run_is_kept_unless_told_otherwise(tmp_path, monkeypatch):
    start(monkeypatch, tmp_path, COMPLETES)
    before = (tmp_path / "mlt-s1" / "run.json").read_text()
    with pytest.raises(ResultsError, match="give --overwrite"):
        start(monkeypatch, tmp_path, FAILS)
    assert (tmp_path / "mlt-s1" / "run.json").read_text() == before
    outcome, _ = start(monkeypatch, tmp_path, FAILS, overwrite=True)
    assert outcome.status == "failed"


def test_an_engine_sees_the_end_of_a_killed_program(tmp_path):
    """The program cannot clear up after SIGKILL: the kernel closes its pipe, and the engine ends itself."""
    folder = RunFolder(tmp_path / "mlt-s1")
    folder.create(False, scenario=scenario().model_dump(mode="json"))
    script = (
        "import sys, time; from pathlib import Path; from testbed.results import RunFolder\n"
        "from testbed.engines.supervisor import Parent, engine_main\n"
        "parent = Parent()\n"
        "def body():\n"
        "    parent.tell(stage='here')\n"
        "    time.sleep(600)\n"
        "sys.exit(engine_main(RunFolder(Path(sys.argv[1])), parent, body))\n"
    )
    keeper = (
        "import subprocess, sys, time\n"
        "engine = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "print(engine.stdout.readline().strip(), engine.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", keeper, sys.executable, "-c", script, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        stage, pid = program.stdout.readline().rsplit(maxsplit=1)
        assert json.loads(stage) == {"stage": "here"}
        program.kill()
    assert eventually(lambda: folder.read()["status"] == "interrupted")
    assert eventually(lambda: not alive(int(pid)))
