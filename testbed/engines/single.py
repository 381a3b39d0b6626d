"""Engine `single`: one process and no network, for transports that only drop (Figure 1 of the paper).

What a network would lose is drawn from the gradient itself, in chunks as a frame would carry them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from protocol import TransportConfig
from scenarios import Drop
from testbed import environment
from testbed.engines.supervisor import Parent, engine_main
from testbed.results import EVENTS_FILE, NodeLog, RunFolder
from testbed.topology import worker_names
from testbed.training.data import DatasetInfo
from testbed.training.loop import epoch_results

NODE = worker_names(1)[0]
FLOAT_BYTES = 4


class ChunkDrop:
    """Zeroes chunks of a gradient at random, the same ones for a seed and an iteration.

    Args:
        transport: which share of the chunks, in which epochs.
        iterations_per_epoch: length of an epoch.
        chunk_bytes: size of a chunk.
        seed: of the run.
    """

    def __init__(self, transport: Drop, iterations_per_epoch: int, chunk_bytes: int, seed: int) -> None:
        self._transport, self._per_epoch, self._seed = transport, iterations_per_epoch, seed
        self._values = chunk_bytes // FLOAT_BYTES

    def chunks(self, size: int) -> int:
        """Chunks of a gradient of `size` values; the last may be shorter."""
        return -(-size // self._values)

    def __call__(self, gradient: np.ndarray, iteration: int) -> None:
        """Zero chunks of the gradient of an iteration, (size,) float32, in place."""
        if not self._transport.drops_in(iteration // self._per_epoch):
            return
        draws = np.random.default_rng((self._seed, iteration)).random(self.chunks(gradient.size))
        for chunk in np.flatnonzero(draws < self._transport.rate):
            gradient[chunk * self._values : (chunk + 1) * self._values] = 0


def run(folder: RunFolder, parent: Parent) -> None:
    """Train to the last iteration."""
    record, scenario = folder.read(), folder.scenario()
    workload = scenario.workload
    chunk_bytes = TransportConfig(mtu=scenario.topology.link.mtu).chunk_bytes
    drop = ChunkDrop(
        scenario.transports[record["transport"]], workload.iterations_per_epoch, chunk_bytes, record["seed"]
    )
    parent.tell(node=NODE, stage="loading the model and the data")
    import torch

    from testbed.training.trainer import Trainer

    trainer = Trainer(workload, rank=0, workers=1, seed=record["seed"], dataset=DatasetInfo(**record["dataset"]))
    torch.set_num_threads(environment.cores())  # nobody else computes
    folder.update(
        device=trainer.device,
        model={"name": workload.model, "parameters": trainer.size, "bytes": FLOAT_BYTES * trainer.size,
               "chunk_bytes": chunk_bytes, "frames": drop.chunks(trainer.size)},
    )
    (folder.path / EVENTS_FILE).touch()  # there are none
    log = NodeLog(folder.path, NODE)
    for iteration in range(workload.iterations):
        begin = time.monotonic()
        loss = trainer.compute(iteration)
        drop(trainer.gradient, iteration)
        trainer.apply(trainer.gradient)
        total = time.monotonic() - begin
        log.row("norm", iteration=iteration, gradient_norm=float(np.linalg.norm(trainer.gradient)))
        log.row(
            "iteration", iteration=iteration, worker=NODE, loss=loss, compute_s=total, communication_s=0.0,
            total_s=total,
        )
        parent.tell(node=NODE, iteration=iteration, loss=loss)
        for row in epoch_results(workload, trainer, iteration + 1):
            log.row("eval", worker=NODE, **row)
            parent.tell(node=NODE, evaluated=row["iteration"], metric=row["metric"], value=row["value"])


def main(argv: list[str]) -> int:
    """Run the engine on the folder named in `argv`."""
    parent = Parent()
    os.chdir(argv[0])
    folder = RunFolder(Path("."))
    return engine_main(folder, parent, lambda: run(folder, parent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
