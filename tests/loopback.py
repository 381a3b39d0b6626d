"""Jobs on real loopback sockets: a server and its workers, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import numpy as np

from protocol import RoundStats, Server, ServerStep, Timeouts, TransportConfig, Worker

# Patience far beyond what any of these jobs needs: only a hang reaches it.
CONFIG = TransportConfig(secret=b"loopback", timeouts=Timeouts(connect=30.0, stall=30.0))
HANG = 60.0      # s: far beyond the patience above


class Drop:
    """Loses each frame with the same probability."""

    def __init__(self, probability: float, seed: int) -> None:
        self.probability, self.random = probability, np.random.default_rng(seed)

    def keep(self, frames: int) -> np.ndarray:
        return self.random.random(frames) >= self.probability


@dataclass
class Work:
    """What one worker saw."""

    averages: list[np.ndarray] = field(default_factory=list)
    rounds: list[RoundStats] = field(default_factory=list)
    delivered: list[np.ndarray] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)


def gradients(workers: int, rounds: int, size: int, seed: int = 1) -> np.ndarray:
    """(workers, rounds, size) float32, no value zero."""
    values = np.random.default_rng(seed).standard_normal((workers, rounds, size)).astype(np.float32)
    return np.where(values == 0, np.float32(1), values)


def serve(server: Server, on_accept: Callable[[Server], None] = lambda server: None) -> list[ServerStep]:
    """A server's whole life."""
    steps = []
    with server:
        server.accept()
        on_accept(server)
        while (step := server.all_reduce()) is not None:
            steps.append(step)
    return steps


def work(
    server: Server, rank: int, mine: Sequence[np.ndarray], config: TransportConfig = CONFIG, **options: object
) -> Work:
    """A worker's whole life: one all-reduce per row of `mine`."""
    seen = Work()
    with Worker(server.address, rank, len(mine[0]), config, **options) as worker:
        for gradient in mine:
            seen.averages.append(worker.all_reduce(gradient).copy())
            seen.rounds.append(worker.last)
            seen.delivered.append(worker.delivered.copy())
        seen.dropped = worker.dropped
    return seen


class Pool:
    """Threads for a job. Leaving it waits for all of them; each result or error stays in its future."""

    def __enter__(self) -> Pool:
        self._futures: list[Future] = []
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        _, hung = wait(self._futures, HANG)
        assert kind or not hung, f"{len(hung)} of {len(self._futures)} threads hang"

    def __call__(self, function: Callable, *arguments: object, **options: object) -> Future:
        future: Future = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        # A daemon, so that a thread that hangs fails its test and not the whole run.
        threading.Thread(target=run, daemon=True).start()
        self._futures.append(future)
        return future


def run_job(
    values: np.ndarray, server: Server, worker_config: TransportConfig = CONFIG,
    impairment: Callable[[int], Drop | None] = lambda rank: None,
    on_accept: Callable[[Server], None] = lambda server: None,
) -> tuple[list[Work], list[ServerStep]]:
    """A job that is meant to end well: what each worker saw, and the server's steps."""
    with Pool() as pool:
        steps = pool(serve, server, on_accept)
        workers = [
            pool(work, server, rank, mine, worker_config, impairment=impairment(rank))
            for rank, mine in enumerate(values)
        ]
    return [worker.result() for worker in workers], steps.result()
