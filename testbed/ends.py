"""The two ends of each kind of transport: what server and workers of a run average gradients with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from protocol import RoundStats, Server, ServerStep, Tensor, Worker
from protocol.endpoint import Impairment
from protocol.handshake import Address
from scenarios import Scenario
from testbed.bursts.local import LocalLinks
from testbed.results import NODES
from testbed.topology import host_interface, worker_names
from testbed.transport import CONNECT_TIMEOUT, SECRET_VARIABLE, tolerance_schedule, transport_config


class Loop(Protocol):
    """What the gate asks of an end."""

    def run_until_idle(self) -> None:
        """Wait until nothing that this process has sent is on its way."""

    def run(self, until: Callable[[], bool], wake: int) -> None:
        """Serve the peers until `until()` holds; `wake` is a file descriptor that makes it look."""


class ServerEnd(AbstractContextManager, Protocol):
    """As `protocol.Server`."""

    address: Address
    loop: Loop

    def accept(self) -> None: ...

    def all_reduce(self) -> ServerStep | None: ...


class WorkerEnd(AbstractContextManager, Protocol):
    """As `protocol.Worker`."""

    loop: Loop
    last: RoundStats

    def all_reduce(self, gradient: np.ndarray, out: np.ndarray) -> Any: ...


@dataclass(frozen=True)
class Job:
    """What an end is made from.

    Attributes:
        folder: of the run.
        run: its `run.json`.
        scenario: resolved.
        name: of this host.
    """

    folder: Path
    run: dict[str, Any]
    scenario: Scenario
    name: str

    @property
    def secret(self) -> str:
        return os.environ.get(SECRET_VARIABLE, "")

    @property
    def workers(self) -> int:
        return self.scenario.topology.workers

    @property
    def rank(self) -> int:
        return worker_names(self.workers).index(self.name)


class Ends:
    """Of one kind, for one host."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def meet(self, address: Address) -> Any:
        """Where a worker goes to join the others, before it loads its model. With port 0 it is the first: it listens,
        and the others are told the `port` of what this returns."""
        return address

    def server(self, address: Address) -> ServerEnd:
        """Listens on return."""
        raise NotImplementedError

    def worker(self, meeting: Any, size: int, tensors: Sequence[Tensor]) -> WorkerEnd:
        """Connected on return."""
        raise NotImplementedError

    def frames(self, worker: WorkerEnd) -> dict[str, int]:
        """`chunk_bytes` and `frames` for the record of the run."""
        return worker.frames


class FrameEnds(Ends):
    """`protocol`: bounded loss, and one pass without repair."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        run = job.run
        self._config = transport_config(job.scenario, run["transport"], run["data_port_base"], job.secret)
        self._local = LocalLinks(job.folder / NODES, job.name, run["seed"]) if run["engine"] == "local" else None

    def _impairment(self, host: str, direction: str) -> Impairment | None:
        """What loses frames in this process, where there is no emulated link."""
        return self._local and self._local.link(host, direction)

    def server(self, address: Address) -> Server:
        names = worker_names(self.job.workers)
        run = self.job.run
        tolerance = tolerance_schedule(self.job.scenario, run["transport"], run["seed"])
        return Server(
            address, self.job.workers, self._config, tolerance, lambda rank: self._impairment(names[rank], "to_server")
        )

    def worker(self, meeting: Address, size: int, tensors: Sequence[Tensor]) -> Worker:
        job = self.job
        impairment = self._impairment(job.name, "to_worker")
        return Worker(meeting, job.rank, size, self._config, job.name, tensors, impairment)

    def frames(self, worker: Worker) -> dict[str, int]:
        return {"chunk_bytes": self._config.chunk_bytes, "frames": len(worker.delivered)}


class TcpEnds(Ends):
    """The same star over TCP."""

    def server(self, address: Address) -> ServerEnd:
        from testbed.baselines.tcp import TcpServer

        return TcpServer(address, self.job.workers, self.job.secret, CONNECT_TIMEOUT)

    def worker(self, meeting: Address, size: int, tensors: Sequence[Tensor]) -> WorkerEnd:
        from testbed.baselines.tcp import TcpWorker

        return TcpWorker(meeting, self.job.rank, size, self.job.secret, CONNECT_TIMEOUT)


class GlooEnds(Ends):
    """torch's all-reduce; imports torch, hence late."""

    def meet(self, address: Address) -> Any:
        from testbed.baselines.gloo import Rendezvous

        return Rendezvous(address, CONNECT_TIMEOUT)

    def worker(self, meeting: Any, size: int, tensors: Sequence[Tensor]) -> WorkerEnd:
        from testbed.baselines.gloo import GlooWorker

        interface = "lo" if self.job.run["engine"] == "local" else host_interface(self.job.name)
        return GlooWorker(meeting, self.job.rank, self.job.workers, interface)


KINDS: dict[str, type[Ends]] = {"bounded_loss": FrameEnds, "udp": FrameEnds, "tcp": TcpEnds, "gloo": GlooEnds}


def ends(job: Job) -> Ends:
    """Of the run's kind of transport."""
    return KINDS[job.scenario.transports[job.run["transport"]].kind](job)
