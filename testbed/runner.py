"""Runs a scenario: each transport with each seed, one after the other, each in an engine process of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.config import DATA_PORT_BASE
from scenarios import Scenario
from testbed import doctor, environment, shaping
from testbed.bursts import check_switch, choose_injector, link_ends
from testbed.bursts.actions import module
from testbed.engines import command as engine_command
from testbed.errors import Stopped, UserError
from testbed.footprint import Footprint
from testbed.results import ResultsError, RunFolder
from testbed.topology import SERVER, host_ip
from testbed.training import data
from testbed.transport import SECRET_VARIABLE

LOOPBACK = "127.0.0.1"
STOP_GRACE = 15.0      # s that an engine has to take its network down before it is killed, namespaces and all

News = Callable[["Job", dict[str, Any]], None]


class EngineError(UserError):
    """The engine asked for cannot run here; the text says why and what to do."""


class Interruption:
    """SIGINT and SIGTERM, noted whenever they come but raised only where a run can be stopped. A context manager."""

    def __init__(self) -> None:
        self._noted = self._raising = False

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self._noted:
            raise Stopped

    @contextmanager
    def raised(self) -> Iterator[None]:
        """In here the first signal raises `Stopped` at once."""
        self._raising = True
        try:
            self.check()
            yield
        finally:
            self._raising = False

    def _note(self, number: int, frame: object) -> None:
        self._noted = True
        if self._raising:
            self._raising = False
            raise Stopped


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
    """How a run ended: `complete`, `failed` or `interrupted`; its peaks are in bytes."""

    job: Job
    status: str
    error: str | None
    duration_s: float
    peak_memory: int
    peak_disk: int


def jobs(scenario: Scenario, out: Path) -> list[Job]:
    """All runs of a scenario, transports in turn within a seed, below `out/<scenario>/`."""
    return [
        Job(scenario, transport, seed, out / scenario.name / f"{transport}-s{seed}")
        for seed in scenario.seeds
        for transport in scenario.transports
    ]


def refuse_taken_folders(todo: Sequence[Job], overwrite: bool) -> None:
    """Look at the folders of all jobs before the first one starts.

    Raises:
        ResultsError: one or more of them are taken, by a run that stands there or by another of the jobs; a line each.
    """
    problems: dict[str, None] = {}
    seen: set[Path] = set()
    for job in todo:
        if job.path.resolve() in seen:
            text = f"two of the scenarios are named {job.scenario.name!r} and would share {job.path}; rename one"
            problems[text] = None
        seen.add(job.path.resolve())
        try:
            RunFolder(job.path).refuse_if_taken(overwrite, job.scenario.profile)
        except ResultsError as error:
            problems[str(error)] = None
    if problems:
        raise ResultsError("\n".join(problems))


def choose_engine(asked: str, scenario: Scenario, capture: bool = False) -> tuple[str, str]:
    """The engine for `auto`, `mininet`, `local` or `single`, and why. Without a network it is always `single`.

    Raises:
        EngineError: mininet was asked for and cannot run; an event, a link or a capture is nothing for engine local; or
            the engine asked for has no network, and the scenario needs one.
        UserError: this kernel cannot emulate the scenario's network or events; the text names the field and what is
            missing.
    """
    if not scenario.networked:
        if capture:
            raise EngineError(f"--capture looks at the ports of a switch, and {scenario.name} has no network")
        return "single", "nothing crosses a network"
    if asked == "single":
        raise EngineError(f"engine single has no network, which {scenario.name} needs; use mininet or local")
    ready, reason = doctor.mininet_ready()
    engine = asked if asked != "auto" else "mininet" if ready else "local"
    if engine == "mininet" and not ready:
        raise EngineError(f"engine mininet cannot run: {reason}; or use --engine local")
    if engine == "local":
        other = "engine mininet can" if ready else f"engine mininet could, but: {reason}"
        if capture:
            raise EngineError(f"--capture looks at the ports of a switch, which engine local has not; {other}")
        _check_local(scenario, other)
    else:
        _check_mininet(scenario)
    return engine, reason if asked == "auto" and not ready else "as asked" if asked != "auto" else ""


def _check_mininet(scenario: Scenario) -> None:
    """Refuse what this kernel cannot do before any run of any scenario has begun."""
    shaping.check_kernel(scenario.topology)
    check_switch(scenario)
    link_ends(scenario)
    choose_injector("auto", scenario.events)


def _check_local(scenario: Scenario, other: str) -> None:
    for cable in scenario.topology.cables():
        if cable.link.latency or cable.link.jitter:
            raise EngineError(
                f"topology.{cable.field}.latency needs an emulated link, which engine local has not; {other}"
            )
    for index, event in enumerate(scenario.events):
        problem = module(event).local_problem(event)
        workers = scenario.topology.worker_names
        if problem is None and any(link not in workers for link, _ in event.links(scenario.topology)):
            problem = "engine local draws losses on the links of workers only, not on the server's or between switches"
        if problem:
            raise EngineError(f"events.{index}.action: {event.action!r}: {problem}; {other}")


def run_job(
    job: Job, engine: str, dataset: data.DatasetInfo, overwrite: bool, news: News, command: str,
    interruption: Interruption, capture: bool = False,
) -> Outcome:
    """Run one job to its end and leave its folder complete.

    Args:
        job: what to run.
        engine: a key of `ENGINES`.
        dataset: resolved once for all jobs.
        overwrite: replace a complete run that stands there.
        news: called with each line the engine tells.
        command: the command line, for the record.
        interruption: what stops it.
        capture: write what crosses the switch ports to `captures/`.

    Raises:
        ResultsError: the folder is taken.
        Stopped: interrupted; the engine is gone, the folder says `interrupted`.
    """
    interruption.check()
    folder = RunFolder(job.path)
    begin = time.monotonic()
    host, ports = {"mininet": (host_ip(SERVER), DATA_PORT_BASE), "local": (LOOPBACK, 0)}.get(engine, (None, None))
    folder.create(
        overwrite,
        scenario=job.scenario.model_dump(mode="json"), profile=job.scenario.profile, transport=job.transport,
        seed=job.seed, engine=engine, injector=None, dataset=asdict(dataset), model=None, device=None,
        server_host=host, data_port_base=ports,
        machine=environment.machine(), versions=environment.versions(), git=environment.git_state(),
        started=_timestamp(), finished=None, duration_s=None, links=None, command=command,
        capture=capture,
    )
    stopped = False
    try:
        with _engine(engine_command(engine, job.path), folder) as process:
            footprint = Footprint(process.pid, job.path)
            with footprint, interruption.raised():
                for line in process.stdout:
                    news(job, json.loads(line))
    except Stopped:
        stopped = True
    record = folder.read()
    status, error = record["status"], record["error"]      # of an engine that could still say how it ended
    if process.returncode == 0:
        status = "complete"
    elif status == "running" and stopped:
        status, error = "interrupted", "interrupted by the user"
    elif status == "running":
        status = "failed"
        error = f"the engine process ended with status {process.returncode}; see {folder.log('engine')}"
    folder.collect()
    duration = time.monotonic() - begin
    folder.update(
        status=status, error=error, finished=_timestamp(), duration_s=round(duration, 3),
        peak_memory_bytes=footprint.peak_memory, peak_disk_bytes=footprint.peak_disk,
    )
    if stopped:
        raise Stopped
    return Outcome(job, status, error, duration, footprint.peak_memory, footprint.peak_disk)


@contextmanager
def _engine(command: list[str], folder: RunFolder) -> Iterator[subprocess.Popen]:
    """The engine's process. However the body ends, it is gone afterwards."""
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
        process.stdin.close()
        try:
            process.wait(STOP_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
