"""The console program as a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from leftovers import MARK, PATIENCE, eventually, interfaces, marked, networks

from testbed import doctor

PROGRAM = Path(sys.executable).with_name("dblp")
LONGEST = 240.0      # s; only a program that hangs reaches it, even in a guest of `make test-netem`


def engine_or_skip(engine: str) -> str:
    """The engine, or a skip with the reason why it cannot run here."""
    if engine == "mininet":
        ready, reason = doctor.mininet_ready()
        if not ready:
            pytest.skip(f"engine mininet: {reason}")
    return engine


class Dblp:
    """`dblp ARGUMENTS`, started in `folder`; its output goes to files there.

    Attributes:
        networks: network namespaces, other than this one, that its processes were seen in (`watch`).
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._output = folder / f"{self._mark}.out"
        self._before = interfaces()
        self.networks: set[str] = set()
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [PROGRAM, *arguments], cwd=folder, env={**os.environ, MARK: self._mark}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    def watch(self) -> dict[int, list[str]]:
        """Its processes, itself included."""
        found = marked(self._mark)
        here = os.readlink("/proc/self/ns/net")
        self.networks |= {name for name, inside in networks().items() if name != here and set(inside) & set(found)}
        return found

    def wait(self) -> int:
        """Watch it to its end; its exit status."""
        def ended() -> bool:
            self.watch()      # just forked, it does not carry the mark yet: finding nothing is no sign of the end
            return self.process.poll() is not None

        assert eventually(ended, LONGEST, 0.5), self.output
        return self.process.wait(LONGEST)

    def reach(self, run: Path, iteration: int, workers: list[str]) -> None:
        """Wait until these workers of a run have done this iteration."""
        def there() -> bool:
            assert self.process.poll() is None, self.output
            return all(any(row["kind"] == "iteration" and row["iteration"] >= iteration for row in rows(run, name))
                       for name in workers)

        assert eventually(there, LONGEST, 0.2), self.output
        self.watch()

    def node(self, name: str) -> int:
        """Process id of one node of the run."""
        found = [pid for pid, command in self.watch().items() if command[1:5:3] == ["-m", name]]
        assert len(found) == 1, found
        return found[0]

    def left(self) -> str:
        """What is still there after its end; empty when nothing is.

        A network namespace lasts as long as a process in it, and all its processes carry the mark.
        """
        if not eventually(lambda: not marked(self._mark)):
            return f"processes after {PATIENCE:g} s: {marked(self._mark)}"
        if more := interfaces() - self._before:
            return f"interfaces: {more}"
        return ""

    def end(self) -> None:
        """Kill all of it, for a test that failed half-way."""
        for pid in marked(self._mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(LONGEST)


def rows(run: Path, node: str) -> list[dict[str, Any]]:
    """What a node has written so far; a line that is still being written is left out."""
    try:
        text = (run / "nodes" / f"{node}.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
