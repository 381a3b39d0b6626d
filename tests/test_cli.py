"""The console program: what it prints, what it refuses and how, and its exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny import DOCUMENT

from scenarios import load
from testbed import cli, runner
from testbed.doctor import TOOLS
from testbed.results import RunFolder
from testbed.runner import Outcome, Stopped
from testbed.training import data

REFERENCE = Path(__file__).resolve().parent.parent / "results" / "reference"


class Said(NamedTuple):
    """Exit status and output of the program; `err` on one line, as a console of any width would wrap it."""

    status: int
    out: str
    err: str


@pytest.fixture
def dblp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Any:
    """Runs the program in this process, in a folder of its own that holds tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(DOCUMENT)

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["dblp", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Said(ended.value.code or 0, out, err)

    return call


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[runner.Job]:
    """Runs that end at once: the jobs that would have been run."""
    started: list[runner.Job] = []

    def run_job(job: runner.Job, *_: object) -> Outcome:
        started.append(job)
        failed = job.transport == "mlt" and job.scenario.name == "fails"
        status, error = ("failed", "w2 was killed by SIGKILL") if failed else ("complete", None)
        return Outcome(job, status, error, 1.25, 3 << 30, 1 << 20)

    monkeypatch.setattr(runner, "run_job", run_job)
    return started


@pytest.fixture
def without_mnexec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PATH with all tools but one, for root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS.keys() - {"mnexec"}:
        (tools / tool).write_text("#!/bin/sh\n")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))


# --- wrong input ---


@pytest.mark.parametrize(
    ("line", "wrong", "text"),
    [
        (2, DOCUMENT.replace("rate:", "rte:"), "topology.link.rte: unknown key 'rte'; did you mean 'rate'"),
        (2, DOCUMENT.replace("20mbit", "20mbps"), "topology.link.rate: unknown unit in '20mbps'"),
        (2, DOCUMENT.replace("20mbit", "20"), "20 has no unit; write a rate such as '1gbit'"),
        (12, DOCUMENT + "events: [{action: loss, loss: 70%, at: {iteration: 12}, duration: 1 iteration}]\n",
         "events.0.at: the burst runs to iteration 12, but the last of the run is 11"),
        (12, DOCUMENT + "name: again\n", "name"),
        (10, DOCUMENT.replace("policy: phase_aware", "policy: phase_awre"), "phase_awre"),
    ],
)
def test_a_mistake_in_a_scenario_is_named_with_file_and_line(dblp, jobs, line, wrong, text):
    Path("mine.yaml").write_text(wrong)
    said = dblp("run", "mine.yaml")
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith(f"error: mine.yaml:{line}: ")
    assert text in said.err
    assert jobs == []
    assert not Path("results").exists()


def test_all_mistakes_are_named_at_once(dblp, jobs):
    Path("mine.yaml").write_text(DOCUMENT.replace("20mbit", "20mbps").replace("batch_size: 32", "batch_size: -1"))
    said = dblp("run", "mine.yaml")
    assert said.status == 2
    assert [line.split(": ")[1] for line in said.err.splitlines()] == ["mine.yaml:2", "mine.yaml:5"]


def test_a_mistake_in_the_second_scenario_stops_before_the_first_runs(dblp, jobs):
    Path("mine.yaml").write_text(DOCUMENT.replace("20mbit", "fast"))
    assert dblp("run", "tiny.yaml", "mine.yaml").status == 2
    assert jobs == []


def test_a_wrong_override_is_named_as_it_was_given(dblp, jobs):
    said = dblp("run", "tiny.yaml", "--set", "workload.iteratons=3")
    assert said.status == 2
    assert "--set" in said.err
    assert "did you mean 'iterations'" in said.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("run", "examples/demoo"), "demo"),
        (("run", "tiny.yaml", "--profile", "huge"), "huge"),
        (("run", "tiny.yaml", "--engine", "ns3"), "engine 'ns3': choose auto, mininet or local"),
        (("run", "tiny.yaml", "--overwrit"), "--overwrite"),
        (("report", "nowhere"), "nowhere: does not exist; give a folder that `dblp run SCENARIO` wrote"),
        (("report", "."), "holds no run"),
    ],
)
def test_a_wrong_argument_is_named(dblp, jobs, arguments, text):
    said = dblp(*arguments)
    assert said.status == 2
    assert text in said.err
    assert jobs == []


def test_two_scenarios_of_one_name_would_overwrite_each_other(dblp, jobs):
    shutil.copy("tiny.yaml", "copy.yaml")
    said = dblp("run", "tiny.yaml", "copy.yaml", "--engine", "local")
    assert said.status == 2
    assert "two of the scenarios are named 'tiny'" in said.err
    assert "rename one" in said.err
    assert jobs == []


# --- what is missing ---


def test_a_missing_tool_is_named_with_its_package(dblp, jobs, without_mnexec):
    said = dblp("run", "tiny.yaml", "--engine", "mininet")
    assert said.status == 2
    assert said.err == (
        "error: engine mininet cannot run: tool mnexec: not installed: "
        "apt install --no-install-recommends mininet; or use --engine local\n"
    )
    assert jobs == []


def test_mininet_without_root_is_sent_to_sudo(dblp, jobs, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = dblp("run", "tiny.yaml", "--engine", "mininet")
    assert said.status == 2
    assert "engine mininet cannot run: root: user id 1000: run it with sudo" in said.err
    assert "or use --engine local" in said.err


def test_auto_falls_back_to_local_and_says_why(dblp, jobs, without_mnexec):
    said = dblp("run", "tiny.yaml")
    assert said.status == 0
    assert "engine local (tool mnexec: not installed: apt install --no-install-recommends mininet)" in said.out
    assert [job.transport for job in jobs] == ["dblp", "mlt"]


def test_data_that_cannot_be_had_is_an_error_before_anything_runs(dblp, jobs, monkeypatch):
    def resolve(name: str) -> None:
        raise data.DataError("CIFAR-10 is not in data and cannot be downloaded (no network); put it there")

    monkeypatch.setattr(data, "resolve", resolve)
    said = dblp("run", "tiny.yaml", "--engine", "local")
    assert said.status == 2
    assert said.err == "error: CIFAR-10 is not in data and cannot be downloaded (no network); put it there\n"
    assert jobs == []


# --- results that stand there ---


def finished(transport: str, **changes: Any) -> RunFolder:
    """A complete run of tiny.yaml by engine local on the digits, but for these changes of its record."""
    folder = RunFolder(Path("results/tiny") / f"{transport}-s1")
    scenario = load("tiny.yaml").model_dump(mode="json")
    folder.create(False, **{
        "scenario": scenario, "profile": None, "transport": transport, "seed": 1, "engine": "local", "capture": False,
        "dataset": {"name": "digits"}, "duration_s": 60.0, **changes,
    })
    folder.update(status="complete")
    return folder


def test_resuming_keeps_complete_runs_and_makes_the_others(dblp, jobs):
    finished("dblp")
    finished("mlt").update(status="interrupted")
    said = dblp("run", "tiny.yaml", "--engine", "local", "--resume")
    assert said.status == 0
    assert "kept results/tiny/dblp-s1" in said.out
    assert [job.transport for job in jobs] == ["mlt"]
    assert "all left: about 60 s" not in said.out, "an interrupted run tells no time"


def test_what_other_transports_seeds_and_descriptions_say_does_not_matter_to_a_finished_run(dblp, jobs):
    finished("dblp")
    Path("tiny.yaml").write_text(DOCUMENT.replace("p: 5%", "p: 6%") + "seeds: [1, 2]\ndescription: another\n")
    assert dblp("run", "tiny.yaml", "--engine", "local", "--resume").status == 0
    assert [job.path.name for job in jobs] == ["mlt-s1", "dblp-s2", "mlt-s2"]


@pytest.mark.parametrize(
    ("arguments", "changes", "text"),
    [
        (("--set", "workload.iterations=20"), {}, "with workload.iterations 12, and this one would have 20"),
        (("--set", "transports.dblp.tolerance.high=50%"), {},
         "with transports.dblp.tolerance.high 0.408, and this one would have 0.5"),
        ((), {"engine": "mininet"}, "with engine 'mininet', and this one would have 'local'"),
        ((), {"dataset": {"name": "cifar10"}}, "with dataset 'cifar10', and this one would have 'digits'"),
    ],
)
def test_resuming_refuses_a_complete_run_of_other_settings(dblp, jobs, arguments, changes, text):
    finished("dblp", **changes)
    said = dblp("run", "tiny.yaml", "--engine", "local", "--resume", *arguments)
    assert said.status == 2
    assert f"results/tiny/dblp-s1 holds a complete run {text}; give --overwrite instead of --resume" in said.err
    assert jobs == []


def test_resuming_and_overwriting_exclude_each_other(dblp, jobs):
    said = dblp("run", "tiny.yaml", "--resume", "--overwrite")
    assert said.status == 2
    assert "give one of the two" in said.err


def test_earlier_runs_tell_how_long_a_batch_takes(dblp, jobs):
    finished("dblp")
    finished("mlt", duration_s=120.0)
    said = dblp("run", "tiny.yaml", "--engine", "local", "--overwrite")
    assert said.out.startswith("2 runs, about 3 min\n")
    assert "all left: about 3 min" in said.out


@pytest.mark.parametrize("transport", ["dblp", "mlt"])
def test_complete_runs_are_refused_before_anything_runs(dblp, jobs, transport):
    folder = RunFolder(Path("results/tiny") / f"{transport}-s1")
    folder.create(False)
    folder.update(status="complete")
    said = dblp("run", "tiny.yaml", "--engine", "local")
    assert said.status == 2
    assert f"results/tiny/{transport}-s1 holds a complete run; give --overwrite" in said.err
    assert jobs == []
    assert dblp("run", "tiny.yaml", "--engine", "local", "--overwrite").status == 0
    assert dblp("run", "tiny.yaml", "--engine", "local", "--out", "other").status == 0
    assert len(jobs) == 4


# --- the end ---


def test_a_failed_run_is_named_and_the_others_are_run(dblp, jobs):
    Path("fails.yaml").write_text(DOCUMENT.replace("name: tiny", "name: fails"))
    said = dblp("run", "fails.yaml", "tiny.yaml", "--engine", "local")
    assert said.status == 1
    assert "failed after 1 s, memory up to 3.0 GiB, results/fails/mlt-s1: w2 was killed by SIGKILL" in said.out
    assert "3 of 4 runs complete in 0 s; peak memory 3.0 GiB" in said.out
    assert len(jobs) == 4


def test_json_is_all_that_comes_to_standard_output(dblp, jobs):
    Path("fails.yaml").write_text(DOCUMENT.replace("name: tiny", "name: fails"))
    said = dblp("run", "fails.yaml", "--engine", "local", "--set", "seeds=[3]", "--json")
    assert said.status == 1
    mine = {"scenario": "fails", "seed": 3, "duration_s": 1.25, "peak_memory_bytes": 3 << 30,
            "peak_disk_bytes": 1 << 20}
    assert json.loads(said.out) == [
        mine | {"transport": "dblp", "status": "complete", "error": None, "path": "results/fails/dblp-s3"},
        mine | {"transport": "mlt", "status": "failed", "error": "w2 was killed by SIGKILL",
                "path": "results/fails/mlt-s3"},
    ]
    assert "1/2 fails" in said.err


def test_an_interruption_has_the_status_that_shells_give_it(dblp, monkeypatch):
    def run_job(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(runner, "run_job", run_job)
    said = dblp("run", "tiny.yaml", "--engine", "local")
    assert said.status == 130
    assert said.err.startswith("interrupted")


# --- the other commands ---


def test_scenarios_are_listed(dblp):
    entries = json.loads(dblp("scenarios", "--json").out)
    assert "paper/efficientnet-microburst" in {entry["name"] for entry in entries}
    assert all(Path(entry["path"]).is_file() for entry in entries)
    assert "paper/efficientnet-microburst" in dblp("scenarios").out


def test_the_claims_are_listed_with_their_verdicts(dblp):
    said = dblp("claims", str(REFERENCE))
    assert said.status == 0
    assert "claims of the paper" in said.out
    found = json.loads(dblp("claims", str(REFERENCE), "--json").out)
    assert {verdict["verdict"] for verdict in found} <= {"reproduced", "differs", "not run here"}
    assert any(verdict["runs"] for verdict in found)
    assert all(verdict["command"].startswith("dblp run ") for verdict in found)


def test_without_runs_the_claims_ask_for_some(dblp):
    said = dblp("claims")
    assert said.status == cli.EXIT_USAGE
    assert "give the folder of some runs" in said.err


def test_the_schema_is_json(dblp):
    assert "workload" in json.loads(dblp("schema").out)["properties"]


def test_the_doctor_speaks_json_too(dblp, without_mnexec):
    checks = {check["name"]: check for check in json.loads(dblp("doctor", "--json").out)}
    assert checks["tool mnexec"]["ok"] is False
    assert checks["tool mnexec"]["remedy"].endswith("mininet")


def test_without_a_command_there_is_help(dblp):
    said = dblp()
    assert "reproduce" not in said.err
    for command in ("run", "report", "scenarios", "doctor", "schema"):
        assert command in said.out + said.err


def test_light_commands_do_not_wait_for_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['dblp', 'scenarios']\n"
        "from testbed import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
