"""The whole transport on loopback: exact sums, bounded loss, both ways of moving frames, and peers that fail."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from loopback import CONFIG, Drop, Pool, gradients, run_job, serve, work

from protocol import (
    Fixed,
    LocalProtocolError,
    PeerLostError,
    PhaseAware,
    Polling,
    Reliable,
    RemoteProtocolError,
    Server,
    Timeouts,
    TransportConfig,
    Worker,
)
from protocol.aggregate import l2_norm, mean_zero_filled
from protocol.tolerance import allowed_missing
from protocol.wire import FrameArray

HERE = ("127.0.0.1", 0)
CHUNK_VALUES = CONFIG.chunk_bytes // 4


def mean(values: np.ndarray) -> np.ndarray:
    out = np.empty(values.shape[1], np.float32)
    mean_zero_filled(list(values), out)
    return out


def mask(gradient: np.ndarray, delivered: np.ndarray) -> np.ndarray:
    """The gradient with the chunks that were not delivered zeroed."""
    return np.where(np.repeat(delivered, CHUNK_VALUES)[: len(gradient)], gradient, np.float32(0))


# --- rounds ---


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"segmentation": False},
        {"pacing": "none"},
        {"pacing": "fixed", "fixed_rate": 5e8},
        {"link_rate": 1e9},
        {"polling": Polling(every=10, wait=0.001)},
        {"mtu": 576},
        {"mtu": 9000},
        {"mtu": 65535},
    ],
    ids=lambda changes: " ".join(f"{name}={value}" for name, value in changes.items()) or "default",
)
def test_the_average_is_exact_where_nothing_may_be_lost(changes: dict) -> None:
    config = replace(CONFIG, **changes)
    values = gradients(3, 3, 100_007)
    seen, steps = run_job(values, Server(HERE, 3, config, Reliable()), config)
    for round_ in range(3):
        expected = mean(values[:, round_])
        for worker in seen:
            np.testing.assert_array_equal(worker.averages[round_], expected)
        assert steps[round_].gradient_norm == l2_norm(expected)
    assert [step.step for step in steps] == [0, 1, 2]
    assert [stats.round for stats in seen[0].rounds] == [0, 2, 4]
    assert [stats.round for stats in steps[2].broadcasts] == [5, 5, 5]
    assert [stats.peer for stats in steps[0].broadcasts] == ["w1", "w2", "w3"]


@pytest.mark.parametrize("size", [1, CHUNK_VALUES - 1, CHUNK_VALUES, CHUNK_VALUES + 1, 44 * CHUNK_VALUES, 50_000])
def test_sizes_at_the_borders_of_chunk_and_batch(size: int) -> None:
    values = gradients(2, 2, size)
    seen, _ = run_job(values, Server(HERE, 2, CONFIG))
    for worker, round_ in itertools.product(seen, range(2)):
        np.testing.assert_array_equal(worker.averages[round_], mean(values[:, round_]))


@pytest.mark.parametrize(("server", "worker"), [(True, False), (False, True)])
def test_both_ways_of_moving_frames_understand_each_other(server: bool, worker: bool) -> None:
    values = gradients(2, 2, 30_000)
    seen, _ = run_job(
        values, Server(HERE, 2, replace(CONFIG, segmentation=server)), replace(CONFIG, segmentation=worker)
    )
    np.testing.assert_array_equal(seen[0].averages[1], mean(values[:, 1]))


@pytest.mark.parametrize("shares", [None, (3e8, 1e8)])
def test_each_sender_keeps_to_its_own_share_in_both_directions(shares: tuple[float, ...] | None) -> None:
    granted = shares or (5e8, 5e8)
    config = replace(CONFIG, link_rate=1e9, shares=shares)
    server = Server(HERE, 2, config)
    to_workers: list[float] = []
    with Pool() as pool:
        steps = pool(
            serve, server, lambda server: to_workers.extend(channel.pacer.rate for channel in server._channels)
        )
        rates = [pool(announced, server.address, rank) for rank in range(2)]
    steps.result()
    in_frames = pytest.approx([share / (8 * config.wire_bytes) for share in granted])
    assert to_workers == in_frames
    assert [rate.result() for rate in rates] == in_frames


def announced(address: tuple[str, int], rank: int) -> float:
    """Frames/s that a worker with no configured rates is granted."""
    with Worker(address, rank, 100, CONFIG) as worker:
        return worker._channel.pacer.rate


def test_polls_cost_real_time_on_both_sides() -> None:
    config = replace(CONFIG, polling=Polling(every=10, wait=0.01))
    seen, steps = run_job(gradients(2, 1, 100 * CHUNK_VALUES), Server(HERE, 2, config), config)
    for stats in (seen[0].rounds[0], seen[1].rounds[0], *steps[0].broadcasts):
        # STOP may come while the last of the ten polls is under way.
        assert stats.passes * 0.09 <= stats.latency_s
        assert stats.frames_sent == stats.frames_delivered == 100


def test_a_share_for_each_worker_or_none() -> None:
    with pytest.raises(LocalProtocolError, match="2 shares for 3 workers"):
        Server(HERE, 3, replace(CONFIG, shares=(1e9, 1e9)))
    with pytest.raises(LocalProtocolError, match="each must be above 0"):
        replace(CONFIG, shares=(1e9, 0.0))


def test_one_worker_gets_its_own_gradient_back() -> None:
    values = gradients(1, 2, 5000)
    [seen], steps = run_job(values, Server(HERE, 1, CONFIG))
    np.testing.assert_array_equal(seen.averages, values[0])
    assert len(steps) == 2


@pytest.mark.parametrize("segmentation", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.008, 0.408])
def test_seventy_per_cent_loss_stays_within_the_tolerance(p: float, segmentation: bool) -> None:
    config = replace(CONFIG, segmentation=segmentation)
    values = gradients(3, 2, 200_003)
    server = Server(HERE, 3, config, Fixed(p), impairment=lambda rank: Drop(0.7, rank))
    seen, steps = run_job(values, server, config, impairment=lambda rank: Drop(0.7, 10 + rank))
    for round_ in range(2):
        arrived = np.array([mask(values[rank, round_], seen[rank].delivered[round_]) for rank in range(3)])
        average = mean(arrived)
        for rank, worker in enumerate(seen):
            reduce, broadcast = worker.rounds[round_], steps[round_].broadcasts[rank]
            for stats in (reduce, broadcast):
                missing = stats.frames_total - stats.frames_delivered
                assert missing <= allowed_missing(p, stats.frames_total)
                assert stats.passes > 1
                assert stats.frames_sent > stats.frames_delivered
                assert stats.tolerance == p
            assert reduce.frames_delivered == worker.delivered[round_].sum()
            # A chunk of the average is whole or zero; as many are zero as the server was told, or as the mean has.
            ours = [worker.averages[round_][i : i + CHUNK_VALUES] for i in range(0, 200_003, CHUNK_VALUES)]
            theirs = [average[i : i + CHUNK_VALUES] for i in range(0, 200_003, CHUNK_VALUES)]
            lost = 0
            for our, their in zip(ours, theirs, strict=True):
                if their.any() and not our.any():
                    lost += 1
                else:
                    np.testing.assert_array_equal(our, their)
            assert lost <= broadcast.frames_total - broadcast.frames_delivered


def test_workers_learn_the_tolerance_in_force_and_the_phase() -> None:
    values = np.ones((2, 4, 10_000), np.float32)
    seen, steps = run_job(values, Server(HERE, 2, CONFIG, PhaseAware(0.0, 0.5, frequency=2)))
    # Detection at step 2 is after its reduce and before its broadcast (Algorithm 3, lines 9 to 15).
    assert [(stats.tolerance, stats.in_clr) for stats in seen[0].rounds] == [(0.0, True)] * 3 + [(0.5, False)]
    broadcasts = [(step.broadcasts[0].tolerance, step.broadcasts[0].in_clr) for step in steps]
    assert broadcasts == [(0.0, True)] * 2 + [(0.5, False)] * 2


def test_the_average_may_replace_the_gradient() -> None:
    values = gradients(1, 1, 5000)
    with Pool() as pool:
        server = Server(HERE, 1, CONFIG)
        served = pool(serve, server)
        with Worker(server.address, 0, 5000, CONFIG) as worker:
            gradient = values[0, 0].copy()
            assert worker.all_reduce(gradient, out=gradient) is gradient
        served.result()
    np.testing.assert_array_equal(gradient, values[0, 0])


def test_what_is_not_a_flat_float32_gradient_is_refused_before_anything_is_sent() -> None:
    values = gradients(1, 1, 100)
    with Pool() as pool:
        server = Server(HERE, 1, CONFIG)
        served = pool(serve, server)
        with Worker(server.address, 0, 100, CONFIG) as worker:
            for wrong in (np.zeros(99, np.float32), np.zeros(100), np.zeros(200, np.float32)[::2]):
                with pytest.raises(LocalProtocolError, match=r"takes contiguous float32\(100,\)"):
                    worker.all_reduce(wrong)
            np.testing.assert_array_equal(worker.all_reduce(values[0, 0]), values[0, 0])
        assert len(served.result()) == 1


# --- frames that do not belong ---


def inject(server: Server) -> None:
    """Send worker 0 what a broken or foreign program might, from the right and from a wrong address."""
    udp = server.loop.channels[0].udp
    frame = FrameArray(1, CONFIG.frame_bytes)
    header = server.loop.channels[0].frames.words[0].copy()      # whose session no stranger could know
    header[2] = 1
    for word, value in ((0, 9 << 24), (1, int(header[1]) ^ 1), (2, 12345), (3, 2**32 - 1)):
        frame.words[0] = header
        frame.words[0, word] = value
        udp.send(frame.bytes)
    for junk in (b"", b"\0", b"junk", bytes(CONFIG.frame_bytes - 1), bytes(CONFIG.frame_bytes)):
        udp.send(junk)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        frame.words[0] = header
        stranger.sendto(frame.bytes, udp.getpeername())


@pytest.mark.parametrize("segmentation", [True, False])
def test_malformed_and_foreign_frames_are_counted_and_harmless(segmentation: bool) -> None:
    config = replace(CONFIG, segmentation=segmentation)
    [[gradient]] = gradients(1, 1, 20_000)
    connected = threading.Event()

    def accepted(server: Server) -> None:
        connected.wait()
        inject(server)

    server = Server(HERE, 1, config)
    with Pool() as pool:
        served = pool(serve, server, accepted)
        with Worker(server.address, 0, len(gradient), config) as worker:
            connected.set()
            np.testing.assert_array_equal(worker.all_reduce(gradient), gradient)
            counted = {reason: count for reason, count in worker.dropped.items() if count}
        assert len(served.result()) == 1
    # A frame of zeros has a version of 0. The stranger's frame, right in all but its source, is not even counted:
    # the socket is connected.
    assert counted == {"version": 2, "session": 1, "stale": 1, "sequence": 1, "length": 3}


# --- peers that fail ---

DOOMED = """
import os, signal, sys
import numpy as np
from protocol import TransportConfig, Worker

class Die:
    def keep(self, frames):
        os.kill(os.getpid(), signal.SIGKILL)

with Worker(("127.0.0.1", int(sys.argv[1])), 1, 50_000, TransportConfig(secret=b"loopback"),
            impairment=Die() if sys.argv[2] == "itself" else None) as worker:
    worker.all_reduce(np.ones(50_000, np.float32))
"""


class Kill:
    """Kills a process when the first frame of it arrives, and loses that."""

    def __init__(self) -> None:
        self.process: Future[subprocess.Popen] = Future()

    def keep(self, frames: int) -> np.ndarray:
        os.kill(self.process.result().pid, signal.SIGKILL)
        return np.zeros(frames, bool)


@pytest.mark.parametrize("killed_in", ["reduce", "broadcast"])
def test_a_worker_killed_in_mid_round_is_named_to_all(killed_in: str) -> None:
    kill = Kill()
    server = Server(
        HERE, 3, CONFIG, impairment=lambda rank: kill if rank == 1 and killed_in == "reduce" else None
    )
    mine = gradients(1, 1, 50_000)[0]
    with Pool() as pool:
        served = pool(serve, server)
        others = [pool(work, server, rank, mine) for rank in (0, 2)]
        how = "itself" if killed_in == "broadcast" else "killed"
        with subprocess.Popen([sys.executable, "-c", DOOMED, str(server.address[1]), how]) as process:
            kill.process.set_result(process)
        assert process.returncode == -signal.SIGKILL
    error = served.exception()
    assert isinstance(error, PeerLostError)
    assert error.peer == "w2"
    assert f"lost w2 in round {0 if killed_in == 'reduce' else 1}" in str(error)
    for other in others:
        if killed_in == "broadcast" and other.exception() is None:
            continue      # it had its average before the other died
        assert isinstance(other.exception(), RemoteProtocolError)
        assert "the server gave up: lost w2 in round" in str(other.exception())


def test_a_worker_that_computes_meanwhile_is_told_in_its_next_round() -> None:
    failed = threading.Event()

    def late(server: Server) -> None:
        with Worker(server.address, 0, 1000, CONFIG) as worker:
            failed.wait()
            worker.all_reduce(np.ones(1000, np.float32))

    def broken(server: Server) -> None:
        with Worker(server.address, 1, 1000, CONFIG):
            raise ValueError("no such batch")

    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served, told, gave_up = pool(serve, server), pool(late, server), pool(broken, server)
        assert "w2 gave up: ValueError: no such batch" in str(served.exception())
        failed.set()
    assert isinstance(gave_up.exception(), ValueError)
    assert isinstance(told.exception(), RemoteProtocolError)
    assert "the server gave up: w2 gave up: ValueError: no such batch" in str(told.exception())


def test_an_early_goodbye_is_an_error_only_once_others_go_on() -> None:
    values = gradients(2, 2, 5000)
    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served = pool(serve, server)
        leaves, stays = pool(work, server, 0, values[0, :1]), pool(work, server, 1, values[1])
    assert len(leaves.result().averages) == 1
    assert isinstance(served.exception(), PeerLostError)
    assert "lost w1 in round 2: it said goodbye while w2 goes on" in str(served.exception())
    assert "said goodbye while w2 goes on" in str(stays.exception())


def test_workers_see_a_server_that_dies() -> None:
    def die(server: Server) -> NoReturn:
        raise MemoryError

    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        pool(serve, server, die)
        workers = [pool(work, server, rank, gradients(1, 1, 5000)[0]) for rank in range(2)]
    for worker in workers:
        assert isinstance(worker.exception(), PeerLostError)
        assert worker.exception().peer == "the server"
        assert "lost the server in round 0" in str(worker.exception())


def test_a_round_without_progress_fails_by_name() -> None:
    config = replace(CONFIG, timeouts=Timeouts(connect=30.0, stall=0.3))
    server = Server(HERE, 1, CONFIG, impairment=lambda rank: Drop(1.0, 0))
    with Pool() as pool:
        served = pool(serve, server)
        worker = pool(work, server, 0, gradients(1, 1, 5000)[0], config)
    assert "lost the server in round 0: no chunk was delivered for 0.3 s" in str(worker.exception())
    assert "lost w1 in round 0" in str(served.exception())


@pytest.mark.parametrize(
    ("garbage", "complaint"),
    [
        (b"\0\0\0\x01\x63", "unknown control message type 99"),
        (b"\xff" * 5, "control message of 4294967295 bytes"),
        (b"\0\0\0\x12\x01\x01" + bytes(16), "CHALLENGE after the handshake"),
    ],
)
def test_a_broken_control_message_names_who_sent_it(garbage: bytes, complaint: str) -> None:
    def babble(server: Server) -> None:
        with Worker(server.address, 1, 1000, CONFIG) as worker:
            worker.loop.channels[0].tcp.send(garbage)
            worker.all_reduce(np.ones(1000, np.float32))

    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served, other = pool(serve, server), pool(work, server, 0, gradients(1, 1, 1000)[0])
        babbler = pool(babble, server)
    assert isinstance(served.exception(), RemoteProtocolError)
    assert f"w2 broke the protocol: {complaint}" in str(served.exception())
    for told in (other, babbler):
        assert "the server gave up: w2 broke the protocol" in str(told.exception())


def test_closing_twice_is_harmless() -> None:
    server = Server(HERE, 1, CONFIG)
    with Pool() as pool:
        served = pool(serve, server)
        worker = Worker(server.address, 0, 10, TransportConfig(secret=b"loopback"))
        worker.close()
        worker.close()
        assert served.result() == []
        server.close()
