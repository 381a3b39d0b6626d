"""Runs the processes of one run to their end, whatever that is: what the engines have in common.

An engine process reads its standard input only for its end: when whoever started it closes the pipe, or dies, the run
is interrupted. It tells that parent how it goes by JSON lines on its standard output.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from testbed.bursts import Injector
from testbed.bursts.director import Director
from testbed.bursts.gate import Gate
from testbed.results import EVENTS_FILE, NODES, NodeLog, RunFolder
from testbed.topology import worker_names
from testbed.training.loop import GATE_SOCKET

if TYPE_CHECKING:
    from mininet.net import Mininet

POLL = 0.05               # s between looks at the processes
ERROR_GRACE = 3.0         # s that the other processes have to say what they saw when one has failed
STOP_GRACE = 3.0          # s between SIGTERM and SIGKILL
DRIFT_BLOCK = 1 << 20     # parameters of each replica that are compared at a time
INTERRUPTED = 130         # exit status after SIGINT (128 + 2), as shells have it

Spawn = Callable[[str, list[str], TextIO], subprocess.Popen]


class RunFailed(RuntimeError):
    """The run ended before its last iteration; the text names the process and the cause."""


class Interrupted(BaseException):
    """Somebody asked for the end. Not an Exception: nothing on the way may swallow it."""


class Parent:
    """The process that started this engine: news goes to it, and its end is ours."""

    def __init__(self) -> None:
        # Libraries print; only JSON lines may reach the parent.
        self._pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        signal.signal(signal.SIGTERM, self._interrupt)
        signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, **fields: Any) -> None:
        """One line of news; a parent that is gone is no error, `_watch` sees that."""
        with self._lock, _quiet():
            self._pipe.write(json.dumps(fields) + "\n")

    def _watch(self) -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    @staticmethod
    def _interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Interrupted


class _quiet:
    """A broken pipe to the parent is expected when it dies first."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is BrokenPipeError


class Supervisor:
    """Gate, processes and their news for one run.

    Args:
        folder: the run's folder; the working directory of this process.
        parent: where news goes.
        injector: what carries out the events of links.
        spawn: starts a command in a host, its output going to the file.
        queues: counters of the links' queues, for the event log.
        network: the emulated network, if there is one.
    """

    def __init__(
        self,
        folder: RunFolder,
        parent: Parent,
        injector: Injector,
        spawn: Spawn,
        queues: Callable[[], list[dict[str, Any]]] = list,
        network: Mininet | None = None,
    ) -> None:
        self._folder, self._parent, self._spawn, self._queues = folder, parent, spawn, queues
        self._scenario = folder.scenario()
        self._processes: dict[str, subprocess.Popen] = {}
        self._director = Director(self._scenario, injector, network, self._processes.get)
        self._hosts = self._scenario.transports[folder.read()["transport"]].hosts(self._scenario.topology)
        self._progress = dict.fromkeys(self._hosts, -1)
        self._errors: dict[str, str] = {}
        self._port: int | None = None
        self._log = NodeLog(folder.path, "engine")

    def run(self) -> None:
        """Start all processes, wait for their end, leave none.

        Raises:
            RunFailed: a process failed or was killed.
            Interrupted: by the parent or a signal; the processes are gone by then.
        """
        # The gate's socket has a path relative to the run's folder, since it may be at most 108 bytes long.
        gate = Gate(
            GATE_SOCKET, self._scenario, self._director, EVENTS_FILE, hosts=self._hosts, queues=self._queues,
            on_report=self._on_report, on_flip=lambda entry: self._parent.tell(event=entry),
        )
        with self._director, gate:
            try:
                first, *others = self._hosts
                address = self._folder.read()["server_host"]
                self._start(first, f"{address}:0")
                while self._port is None:
                    self._check()
                    time.sleep(POLL)
                for name in others:
                    self._start(name, f"{address}:{self._port}")
                while any(process.poll() is None for process in self._processes.values()):
                    self._check()
                    self._measure_drift()
                    time.sleep(POLL)
                self._check()
                self._measure_drift()
            finally:
                self._end_all()

    def _start(self, name: str, address: str) -> None:
        command = [sys.executable, "-m", "testbed.training.loop", ".", name, address]
        with self._folder.log(name).open("w") as output:
            self._processes[name] = self._spawn(name, command, output)

    # --- news from the processes (gate thread) ---

    def _on_report(self, node: str, report: dict[str, Any]) -> None:
        if "iteration" in report:
            self._progress[node] = report["iteration"]
        if "port" in report:
            self._port = report["port"]
        elif "error" in report:
            self._errors[node] = report["error"]
        elif "model" in report:
            if node == worker_names(1)[0]:
                facts = dict(report["model"])
                self._folder.update(device=facts.pop("device"), model=facts)
        else:
            self._parent.tell(node=node, **report)

    # --- failure ---

    def _check(self) -> None:
        failed = {name: code for name, process in self._processes.items() if (code := process.poll())}
        if not failed:
            return
        deadline = time.monotonic() + ERROR_GRACE
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes.values()):
            time.sleep(POLL)
        raise RunFailed(self._explain(failed))

    def _explain(self, failed: dict[str, int]) -> str:
        """The first cause: a process that was killed before one that only noticed."""
        for name, code in failed.items():
            if code < 0 or code > 128:
                number = signal.Signals(-code if code < 0 else code - 128).name
                event = self._director.killed_by(name)
                why = "" if event is None else f", as events.{event} asks; a run does not go on without a host"
                return f"{name} was killed by {number} in iteration {self._progress[name] + 1}{why}"
        name = next(iter(failed))
        reported = self._errors.get(name) or _last_line(self._folder.log(name))
        return f"{name} failed in iteration {self._progress[name] + 1}: {reported}"

    def _end_all(self) -> None:
        alive = [process for process in self._processes.values() if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGCONT)      # an event may have stopped it
            process.terminate()
        deadline = time.monotonic() + STOP_GRACE
        for process in alive:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- replica drift ---

    def _measure_drift(self) -> None:
        """Where all replicas of an iteration have left their parameters: how far each is from their mean.

        In units of the way that the mean has come from the start.
        """
        names = worker_names(self._scenario.topology.workers)
        folder = self._folder.path / NODES
        done: dict[int, list[Path]] = {}
        for path in folder.glob("parameters-*.npy"):
            done.setdefault(int(re.split(r"[-.]", path.name)[1]), []).append(path)
        start = folder / f"parameters-0-{names[0]}.npy"
        for iteration, paths in sorted(done.items()):
            if iteration == 0 or len(paths) < len(names) or not start.exists():
                continue
            travelled, apart = _distances(start, [folder / f"parameters-{iteration}-{name}.npy" for name in names])
            for name, distance in zip(names, apart, strict=True):
                drift = distance / travelled if travelled else 0.0
                self._log.row("drift", iteration=iteration, worker=name, replica_drift=drift)
            for path in paths:
                path.unlink()


def _distances(start: Path, replicas: list[Path]) -> tuple[float, list[float]]:
    """How far the mean of the replicas is from the start, and each replica from the mean.

    Block by block: all replicas of a large model at once would take more memory than one of its workers.
    """
    origin, *vectors = (np.load(path, mmap_mode="r") for path in (start, *replicas))
    squares = np.zeros(1 + len(vectors))
    for begin in range(0, len(origin), DRIFT_BLOCK):
        block = slice(begin, begin + DRIFT_BLOCK)
        parts = [vector[block] for vector in vectors]
        mean = sum(parts) / len(parts)
        squares += [float(np.dot(apart, apart)) for apart in (mean - origin[block], *(part - mean for part in parts))]
    travelled, *apart = np.sqrt(squares).tolist()
    return travelled, apart


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"no output; see {path}"


def engine_main(folder: RunFolder, parent: Parent, body: Callable[[], None]) -> int:
    """Run an engine's body; the exit status of the engine process.

    A bad end stands in `run.json` at once. A good one is for the parent to write, once it has made the tables.
    """
    try:
        body()
    except Interrupted:
        folder.update(status="interrupted", error="interrupted by the user")
        return INTERRUPTED
    except Exception as error:
        text = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
        folder.update(status="failed", error=text)
        parent.tell(error=text)
        if not isinstance(error, RunFailed):
            import traceback

            traceback.print_exc()
        return 1
    return 0
