"""The program in each host: `python -m testbed.training.loop FOLDER NODE [SERVER:PORT]`.

The server averages (Algorithm 3), a worker trains (Algorithm 4). Both write their rows to the run's folder, tell the
gate how far they are, and stop at it where an event begins or ends. The last line of a failure goes to the gate, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol import DblpError, Server, Tensor, Worker
from protocol.endpoint import EventLoop, Impairment
from testbed.bursts.gate import GateClient, GateError, gate_iterations
from testbed.bursts.local import LocalLinks
from testbed.results import NODES, NodeLog, RunFolder
from testbed.topology import SERVER, worker_names
from testbed.training.data import DatasetInfo
from testbed.transport import SECRET_VARIABLE, tolerance_schedule, transport_config

if TYPE_CHECKING:
    from scenarios import Workload
    from testbed.training.trainer import Trainer  # torch: seconds, which the server does not need

GATE_SOCKET = "gate.sock"  # relative to the run's folder: the path of a Unix socket has 108 bytes at most


class Node:
    """What server and worker have in common.

    Args:
        folder: the run's folder, also the working directory.
        name: `srv` or `w1` to `wN`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        run = RunFolder(folder).read()
        self.folder, self.name, self.run = folder, name, run
        self.scenario = RunFolder(folder).scenario()
        self.iterations = self.scenario.workload.iterations
        self.config = transport_config(
            self.scenario, run["transport"], run["data_port_base"], os.environ.get(SECRET_VARIABLE, "")
        )
        self.log = NodeLog(folder, name)
        self.gate = GateClient(GATE_SOCKET, name)
        self._local = LocalLinks(folder / NODES, name, run["seed"]) if run["engine"] == "local" else None
        self._gated = frozenset(gate_iterations(self.scenario.timeline(), self.iterations, self.scenario.spells()))

    def impairment(self, host: str, direction: str) -> Impairment | None:
        """What loses frames in this process, where there is no emulated link."""
        return self._local and self._local.link(host, direction)

    def pass_gate(self, iteration: int, loop: EventLoop) -> None:
        """Where an event begins or ends, wait until nothing is on its way anywhere and the injector is set.

        The sockets are served meanwhile: what a peer has not read counts as on its way.
        """
        if iteration not in self._gated:
            return
        loop.run_until_idle()
        self.gate.send_barrier(iteration)
        answer: dict | None = None

        def answered() -> bool:
            nonlocal answer
            answer = self.gate.poll_go()
            return answer is not None

        loop.run(answered, wake=self.gate.fileno())
        if "abort" in answer:
            raise GateError(answer["abort"])


def serve(node: Node) -> None:
    """The server's run."""
    run, workers = node.run, node.scenario.topology.workers
    names = worker_names(workers)
    tolerance = tolerance_schedule(node.scenario, run["transport"], run["seed"])

    def impair(rank: int) -> Impairment | None:
        return node.impairment(names[rank], "to_server")

    with Server((run["server_host"], 0), workers, node.config, tolerance, impair) as server:
        node.gate.report(port=server.address[1])
        server.accept()
        for iteration in range(node.iterations):
            node.pass_gate(iteration, server.loop)
            step = server.all_reduce()
            if step is None:
                raise DblpError(f"all workers said goodbye before iteration {iteration}")
            node.log.row("norm", iteration=iteration, gradient_norm=step.gradient_norm)
            for stats in step.broadcasts:
                node.log.round(iteration, stats)
            node.gate.report(iteration=iteration, in_clr=server.tolerance.in_clr)
        server.all_reduce()  # the goodbyes


def train(node: Node, server: tuple[str, int]) -> None:
    """A worker's run."""
    from testbed.training.trainer import Trainer  # torch: seconds, which the server does not need

    scenario, run, rank = node.scenario, node.run, worker_names(node.scenario.topology.workers).index(node.name)
    workload = scenario.workload
    node.gate.report(stage="loading the model and the data")
    dataset = DatasetInfo(**run["dataset"])
    trainer = Trainer(workload, rank=rank, workers=scenario.topology.workers, seed=run["seed"], dataset=dataset)
    average = np.zeros(trainer.size, np.float32)
    tensors = [Tensor(name, shape, dtype) for name, shape, dtype in trainer.tensors]
    impairment = node.impairment(node.name, "to_worker")
    if rank == 0:  # replicas start alike
        _save_parameters(node, trainer, 0)
    with Worker(server, rank, trainer.size, node.config, node.name, tensors, impairment) as worker:
        node.gate.report(model=_model_facts(trainer, worker, node))
        for iteration in range(workload.iterations):
            begin = time.monotonic()
            loss = trainer.compute(iteration)
            computed = time.monotonic()
            node.pass_gate(iteration, worker.loop)
            ready = time.monotonic()
            worker.all_reduce(trainer.gradient, out=average)
            exchanged = time.monotonic()
            trainer.apply(average)
            end = time.monotonic()
            node.log.round(iteration, worker.last)
            node.log.row(
                "iteration",
                iteration=iteration,
                worker=node.name,
                loss=loss,
                compute_s=computed - begin + end - exchanged,
                communication_s=exchanged - ready,
                total_s=end - begin - (ready - computed),
            )
            node.gate.report(iteration=iteration, loss=loss, latency_s=worker.last.latency_s)
            _log_results(node, trainer, iteration + 1)


def epoch_results(workload: Workload, trainer: Trainer, done: int) -> list[dict[str, Any]]:
    """What a replica's evaluation says after `done` iterations, a row a metric; nothing within an epoch."""
    if done % workload.iterations_per_epoch and done != workload.iterations:
        return []
    epoch = (done - 1) // workload.iterations_per_epoch
    return [
        {"iteration": done, "epoch": epoch, "metric": metric, "value": value}
        for metric, value in trainer.evaluate().items()
    ]


def _log_results(node: Node, trainer: Trainer, done: int) -> None:
    """Each replica answers its part of the test samples; the mean over the workers is the result of the job."""
    rows = epoch_results(node.scenario.workload, trainer, done)
    if rows:
        _save_parameters(node, trainer, done)
    for row in rows:
        node.log.row("eval", worker=node.name, **row)
        node.gate.report(evaluated=done, metric=row["metric"], value=row["value"])


def _save_parameters(node: Node, trainer: Trainer, done: int) -> None:
    """Leave the parameters to the engine, which measures how far the replicas are apart."""
    path = node.folder / NODES / f"parameters-{done}-{node.name}.npy"
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.save(file, trainer.parameters_vector())
    temporary.rename(path)


def _model_facts(trainer: Trainer, worker: Worker, node: Node) -> dict:
    return {
        "name": node.scenario.workload.model,
        "parameters": trainer.size,
        "bytes": 4 * trainer.size,
        "chunk_bytes": node.config.chunk_bytes,
        "frames": len(worker.delivered),
        "device": trainer.device,
    }


def main(argv: list[str]) -> int:
    """Run one node; the exit status is 0 when it has done all its iterations."""
    folder, name = Path(argv[0]), argv[1]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    os.chdir(folder)
    node = Node(Path("."), name)
    try:
        if name == SERVER:
            serve(node)
        else:
            host, port = argv[2].rsplit(":", 1)
            train(node, (host, int(port)))
    except Exception as error:
        known = isinstance(error, DblpError | GateError)
        logging.error("%s failed: %s", name, error, exc_info=not known)
        with contextlib.suppress(GateError):
            node.gate.report(error=str(error) if known else f"{type(error).__name__}: {error}")
        return 1
    node.gate.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
