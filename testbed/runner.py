"""Runs a scenario: each transport with each seed, one after the other, each in an engine process of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.config import DATA_PORT_BASE
from scenarios import Scenario
from testbed import doctor, environment, shaping
from testbed.bursts import link_ends
from testbed.engines import command as engine_command
from testbed.errors import Stopped, UserError
from testbed.results import RunFolder
from testbed.topology import SERVER, host_ip, switch_class
from testbed.training import data
from testbed.transport import SECRET_VARIABLE

STOP_GRACE = 15.0      # s that an engine has to take its network down before it is killed, namespaces and all

News = Callable[["Job", dict[str, Any]], None]


class EngineError(UserError):
    """The engine asked for cannot run here; the text says why and what to do."""


@dataclass(frozen=True)
class Job:
    """One run of a scenario.

    Attributes:
        scenario: the scenario, resolved.
        transport: which of its transports.
        seed: which of its seeds.
        path: the run's folder.
    """

    scenario: Scenario
    transport: str
    seed: int
    path: Path


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `complete`, `failed` or `interrupted`."""

    job: Job
    status: str
    error: str | None
    duration_s: float


def jobs(scenario: Scenario, out: Path) -> list[Job]:
    """All runs of a scenario, transports in turn within a seed, below `out/<scenario>/`."""
    return [
        Job(scenario, transport, seed, out / scenario.name / f"{transport}-s{seed}")
        for seed in scenario.seeds
        for transport in scenario.transports
    ]


def choose_engine(asked: str, scenario: Scenario) -> tuple[str, str]:
    """The engine for `auto`, `mininet` or `local`, and why.

    Raises:
        EngineError: mininet was asked for and cannot run, or a loss must hit TCP, which only mininet can do.
        UserError: this kernel cannot emulate the scenario's network; the text names the field and what is missing.
    """
    ready, reason = doctor.mininet_ready()
    engine = asked if asked != "auto" else "mininet" if ready else "local"
    if engine == "mininet" and not ready:
        raise EngineError(f"engine mininet cannot run: {reason}; or use --engine local")
    if engine == "local":
        link = scenario.topology.link
        if any(event.protocol == "all" for event in scenario.events):
            raise EngineError(
                "an event with protocol 'all' also loses TCP segments, which engine local has no link for; "
                f"engine mininet can: {reason}"
            )
        if link.latency or link.jitter:
            raise EngineError(f"topology.link.latency needs an emulated link, which engine local has not; {reason}")
    else:
        _check_mininet(scenario)
    return engine, reason if asked == "auto" and not ready else "as asked" if asked != "auto" else ""


def _check_mininet(scenario: Scenario) -> None:
    """Refuse what this kernel cannot do before any run of any scenario has begun."""
    shaping.check_kernel(scenario.topology.link)
    switch_class(scenario.topology.switch)
    link_ends(scenario)


def run_job(job: Job, engine: str, dataset: data.DatasetInfo, overwrite: bool, news: News, command: str) -> Outcome:
    """Run one job to its end and leave its folder complete.

    Args:
        job: what to run.
        engine: a key of `ENGINES`.
        dataset: resolved once for all jobs.
        overwrite: replace a complete run that stands there.
        news: called with each line the engine tells.
        command: the command line, for the record.

    Raises:
        ResultsError: the folder is taken.
        Stopped: interrupted; the engine is gone, the folder says `interrupted`.
    """
    folder = RunFolder(job.path)
    begin = time.monotonic()
    on_loopback = engine == "local"
    folder.create(
        overwrite,
        scenario=job.scenario.model_dump(mode="json"), profile=job.scenario.profile, transport=job.transport,
        seed=job.seed, engine=engine, injector=None, dataset=asdict(dataset), model=None, device=None,
        server_host="127.0.0.1" if on_loopback else host_ip(SERVER),
        data_port_base=0 if on_loopback else DATA_PORT_BASE,
        machine=environment.machine(), versions=environment.versions(), git=environment.git_state(),
        started=_timestamp(), finished=None, duration_s=None, links=None, command=command,
    )
    stopped = False
    try:
        with _engine(engine_command(engine, job.path), folder) as process:
            for line in process.stdout:
                news(job, json.loads(line))
    except Stopped:
        stopped = True
    record = folder.read()
    if record["status"] == "running":
        status = ("interrupted", "interrupted by the user") if stopped else (
            "failed", f"the engine process ended with status {process.returncode}; see {folder.log('engine')}"
        )
        folder.update(status=status[0], error=status[1])
    folder.collect()
    duration = time.monotonic() - begin
    folder.update(finished=_timestamp(), duration_s=round(duration, 3))
    record = folder.read()
    if stopped:
        raise Stopped
    return Outcome(job, record["status"], record["error"], duration)


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM raise `Stopped` in here."""

    def stop(number: int, frame: object) -> None:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _engine(command: list[str], folder: RunFolder) -> Iterator[subprocess.Popen]:
    """The engine's process. However the body ends, it is gone afterwards, and a second Ctrl-C does not hinder that."""
    environment_ = {
        **os.environ, SECRET_VARIABLE: secrets.token_hex(16),
        # One thread a process: the workers share the machine's cores.
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }
    with folder.log("engine").open("w") as log:
        # A session of its own: the terminal's Ctrl-C reaches this process, which then closes the pipe.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment_,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            process.stdin.close()
            try:
                process.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
