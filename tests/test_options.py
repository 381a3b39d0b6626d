"""The options of the design on loopback under loss: what the replicas get, and what of it is the same for all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from loopback import CONFIG, Drop, Work, gradients, run_job

from protocol import Fixed, Reliable, Server, ServerStep, TransportConfig
from protocol.aggregate import mean_of_contributors, mean_zero_filled
from protocol.tolerance import allowed_missing

HERE = ("127.0.0.1", 0)
CHUNK_VALUES = CONFIG.chunk_bytes // 4
CHUNKS = 150
SIZE = CHUNKS * CHUNK_VALUES - 60
P = 0.408
LEFT_OUT = allowed_missing(P, CHUNKS)


def lossy_job(values: np.ndarray, **options: object) -> tuple[list[Work], list[ServerStep]]:
    """A job at tolerance P with 30 % loss both ways; the server has the options, the workers have none."""
    server = Server(
        HERE, len(values), replace(CONFIG, **options), Fixed(P), impairment=lambda rank: Drop(0.3, rank)
    )
    return run_job(values, server, impairment=lambda rank: Drop(0.3, 10 + rank))


def rows(gradient: np.ndarray) -> np.ndarray:
    """(CHUNKS, CHUNK_VALUES), the last chunk filled up with zeros."""
    return np.append(gradient, np.zeros(CHUNKS * CHUNK_VALUES - SIZE, np.float32)).reshape(CHUNKS, CHUNK_VALUES)


def received(values: np.ndarray, seen: list[Work], step: int) -> np.ndarray:
    """(workers, SIZE): what the server had of each gradient."""
    return np.array([
        (rows(gradient) * worker.delivered[step][:, np.newaxis]).reshape(-1)[:SIZE]
        for gradient, worker in zip(values[:, step], seen, strict=True)
    ])


def mean(arrived: np.ndarray) -> np.ndarray:
    out = np.empty(SIZE, np.float32)
    mean_zero_filled(list(arrived), out)
    return out


@pytest.mark.parametrize("order", ["sequential", "rotating", "by_norm"])
def test_agreed_replicas_are_identical_and_lack_the_end_of_the_order(order: str) -> None:
    values = gradients(3, 4, SIZE) * np.linspace(1, 2, SIZE, dtype=np.float32)
    seen, steps = lossy_job(values, broadcast="agreed", order=order)
    lacking = []
    for step in range(4):
        average = rows(mean(received(values, seen, step)))
        ours = rows(seen[0].averages[step])
        here = ours.any(axis=1)
        for worker in seen[1:]:
            np.testing.assert_array_equal(worker.averages[step], seen[0].averages[step])
        np.testing.assert_array_equal(ours[here], average[here])
        lacking.append(np.flatnonzero(~here).tolist())
        for stats in steps[step].broadcasts:
            assert stats.frames_total - stats.frames_delivered == LEFT_OUT
            assert stats.tolerance == P
        norms = np.linalg.norm(average, axis=1)
        if order == "by_norm":
            assert norms[here].min() >= norms[~here].max() * (1 - 1e-6)
        elif order == "sequential":
            assert not here[CHUNKS - LEFT_OUT :].any()
        assert (~here).sum() >= LEFT_OUT      # more where no worker's chunk had arrived
    if order == "rotating":
        assert len({tuple(chunks) for chunks in lacking}) == 4


def test_without_repair_every_round_has_one_pass_and_what_is_lost_is_zero() -> None:
    values, config = gradients(3, 3, SIZE), replace(CONFIG, repair="none")
    server = Server(HERE, 3, config, Reliable(), impairment=lambda rank: Drop(0.3, rank))
    seen, steps = run_job(values, server, config, impairment=lambda rank: Drop(0.3, 10 + rank))
    for step in range(3):
        average = rows(mean(received(values, seen, step)))
        for worker in seen:
            ours = rows(worker.averages[step])
            here = ours.any(axis=1)
            np.testing.assert_array_equal(ours[here], average[here])
            assert 0 < (~here).sum() < CHUNKS
        for stats in (*steps[step].broadcasts, *(worker.rounds[step] for worker in seen)):
            assert stats.passes == 1
            assert 0 < stats.frames_delivered < stats.frames_sent == stats.frames_total == CHUNKS


def test_a_lossy_broadcast_gives_each_its_own() -> None:
    seen, _ = lossy_job(gradients(3, 1, SIZE))
    assert not np.array_equal(seen[0].averages[0], seen[1].averages[0])


def test_a_complete_broadcast_lacks_nothing_that_the_server_had() -> None:
    values = gradients(3, 2, SIZE)
    seen, steps = lossy_job(values, broadcast="complete")
    for step, worker in itertools.product(range(2), seen):
        np.testing.assert_array_equal(worker.averages[step], mean(received(values, seen, step)))
    assert {stats.tolerance for stats in steps[1].broadcasts} == {0.0}
    assert {stats.tolerance for worker in seen for stats in worker.rounds} == {P}


def test_the_mean_of_contributors() -> None:
    values = gradients(3, 2, SIZE)
    seen, _ = lossy_job(values, broadcast="complete", aggregate="contributors")
    for step in range(2):
        expected = np.empty(SIZE, np.float32)
        arrived = [worker.delivered[step] for worker in seen]
        mean_of_contributors(list(received(values, seen, step)), expected, arrived, CHUNK_VALUES)
        np.testing.assert_array_equal(seen[0].averages[step], expected)


@pytest.mark.parametrize("order", ["sequential", "by_norm"])
def test_error_feedback_loses_nothing_for_good(order: str) -> None:
    """What a worker ever computed is in the averages of the workers, at the server, or still at a worker."""
    steps = 5
    values = gradients(2, steps, SIZE)
    seen, _ = lossy_job(values, broadcast="agreed", order=order, error_feedback=True)
    at_workers = np.zeros((2, CHUNKS, CHUNK_VALUES))
    at_server = np.zeros((CHUNKS, CHUNK_VALUES))
    for step in range(steps):
        average = np.zeros_like(at_server)
        for rank, worker in enumerate(seen):
            sent = at_workers[rank] + rows(values[rank, step])
            here = worker.delivered[step][:, np.newaxis]
            average += sent * here / 2
            at_workers[rank] = np.where(here, 0, sent)
        out = at_server + average
        got = rows(seen[0].averages[step])
        here = got.any(axis=1)[:, np.newaxis]
        np.testing.assert_allclose(got, out * here, rtol=1e-4, atol=1e-5)
        at_server = np.where(here, 0, out)
        np.testing.assert_array_equal(seen[0].averages[step], seen[1].averages[step])
    assert at_workers.any()
    assert at_server.any()


@pytest.mark.parametrize(
    "options",
    [{"order": "rotating"}, {"order": "by_norm"}, {"broadcast": "agreed"}, {"aggregate": "contributors"},
     {"error_feedback": True}],
    ids=str,
)
def test_no_option_changes_an_average_from_which_nothing_may_be_missing(options: dict) -> None:
    values = gradients(3, 3, SIZE)
    config: TransportConfig = replace(CONFIG, **options)
    server = Server(HERE, 3, config, impairment=lambda rank: Drop(0.3, rank))
    seen, _ = run_job(values, server)
    for step, worker in itertools.product(range(3), seen):
        np.testing.assert_array_equal(worker.averages[step], mean(values[:, step]))
