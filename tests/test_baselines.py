"""The star over plain TCP on loopback: means, records, and who is lost. Every kind of transport has its ends."""

from __future__ import annotations

import numpy as np
import pytest
from loopback import Pool, gradients

from protocol import PeerLostError
from scenarios.transports import KINDS
from testbed import ends
from testbed.baselines.tcp import TcpServer, TcpWorker

WORKERS, ROUNDS, SIZE = 3, 4, 300_001


def serve(server: TcpServer) -> list:
    steps = []
    with server:
        server.accept()
        while (step := server.all_reduce()) is not None:
            steps.append(step)
    return steps


def work(server: TcpServer, rank: int, mine: np.ndarray, secret: str = "s") -> tuple[list, list]:
    out, averages, records = np.empty(SIZE, np.float32), [], []
    with TcpWorker(server.address, rank, SIZE, secret, 30.0) as worker:
        for gradient in mine:
            worker.all_reduce(gradient, out)
            averages.append(out.copy())
            records.append(worker.last)
        worker.loop.run_until_idle()
    return averages, records


def test_everyone_gets_the_mean_and_each_round_has_its_records() -> None:
    values = gradients(WORKERS, ROUNDS, SIZE)
    server = TcpServer(("127.0.0.1", 0), WORKERS, "s", 30.0)
    with Pool() as pool:
        steps = pool(serve, server)
        works = [pool(work, server, rank, mine) for rank, mine in enumerate(values)]
    for averages, records in (each.result() for each in works):
        np.testing.assert_allclose(averages, values.mean(axis=0), rtol=1e-5, atol=1e-6)
        assert [record.round for record in records] == [0, 2, 4, 6]
        assert all(r.latency_s > 0 and r.frames_sent >= r.frames_total == r.frames_delivered > 0 for r in records)
        assert len({record.frames_total for record in records}) == 1, "the MSS of loopback grows with the window"
    assert [step.step for step in steps.result()] == list(range(ROUNDS))
    assert [record.peer for record in steps.result()[0].broadcasts] == ["w1", "w2", "w3"]


def test_a_worker_that_leaves_while_others_go_on_is_named() -> None:
    values = gradients(WORKERS, ROUNDS, SIZE)
    server = TcpServer(("127.0.0.1", 0), WORKERS, "s", 30.0)
    with Pool() as pool:
        steps = pool(serve, server)
        works = [pool(work, server, rank, mine[: 2 if rank == 1 else ROUNDS]) for rank, mine in enumerate(values)]
    with pytest.raises(PeerLostError, match="lost w2 in iteration 2"):
        steps.result()
    assert len(works[1].result()[0]) == 2
    for rank in (0, 2):
        with pytest.raises(PeerLostError, match="lost the server in iteration 2"):
            works[rank].result()


def test_who_did_not_come_is_named() -> None:
    server = TcpServer(("127.0.0.1", 0), 2, "s", 0.3)
    with server, pytest.raises(PeerLostError, match="w1, w2 did not connect"):
        server.accept()


def test_every_kind_that_crosses_a_network_has_its_ends() -> None:
    assert set(ends.KINDS) == {name for name, kind in KINDS.items() if kind.network}
