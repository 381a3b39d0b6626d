"""Who is admitted to a job, who is turned away and told why, and strangers that must not disturb it."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace

import numpy as np
import pytest
from loopback import CONFIG, Pool, gradients, serve, work

from protocol import (
    LocalProtocolError,
    PeerLostError,
    PortInUseError,
    RemoteProtocolError,
    Server,
    Tensor,
    Timeouts,
    TransportConfig,
    Worker,
)
from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT
from protocol.wire import Challenge, ControlDecoder, Error, Hello, Message, Welcome, authenticate, encode

HERE = ("127.0.0.1", 0)
SIZE = 1000


def config(**changes: object) -> TransportConfig:
    return replace(CONFIG, **changes)


def impatient(**timeouts: float) -> TransportConfig:
    return config(timeouts=replace(CONFIG.timeouts, **timeouts))


class Raw:
    """A client that speaks the control protocol by hand."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.tcp = socket.create_connection(address, timeout=30)
        self.decoder = ControlDecoder()

    def receive(self) -> Message | None:
        """The next message, or None where the peer has closed."""
        while True:
            if (message := next(iter(self.decoder), None)) is not None:
                return message
            if not (data := self.tcp.recv(1 << 16)):
                return None
            self.decoder.feed(data)

    def hello(self, secret: bytes = CONFIG.secret, **changes: object) -> None:
        """Answer the CHALLENGE with a HELLO that is right but for `changes`."""
        challenge = self.receive()
        assert isinstance(challenge, Challenge)
        hello = Hello(**{
            "version": 1, "rank": 0, "name": "w1", "udp_port": 9, "frame_bytes": CONFIG.frame_bytes,
            "size_bytes": 4 * SIZE, "chunks": -(-4 * SIZE // CONFIG.chunk_bytes), "tensors": [],
            "nonce": secrets.token_hex(16), **changes,
        })
        try:
            nonces = challenge.nonce + bytes.fromhex(hello.nonce)
        except (TypeError, ValueError):
            nonces = b""
        self.tcp.sendall(encode(replace(hello, mac=authenticate(secret, "worker", nonces, hello))))

    def reset(self) -> None:
        """Close with an RST instead of a FIN."""
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tcp.close()


def job_survives(server: Server, disturb: Callable[[Server], object]) -> None:
    """`disturb` comes before and between two good workers, which nevertheless exchange their gradients."""
    values = gradients(2, 1, SIZE)
    with Pool() as pool:
        served = pool(serve, server)
        disturb(server)
        first = pool(work, server, 0, values[0])
        disturb(server)
        second = pool(work, server, 1, values[1])
    assert len(served.result()) == 1
    for worker in (first, second):
        np.testing.assert_allclose(worker.result().averages[0], values[:, 0].mean(axis=0), rtol=1e-5, atol=1e-6)


# --- turned away, by name, while the job goes on ---


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"secret": b"other"}, {}, "the server refused: 'intruder' does not know this job's secret"),
        ({"mtu": 9000}, {}, "intruder uses frames of 8972 bytes, the server 1472; set the same mtu on both"),
        ({}, {"rank": 2}, "intruder has rank 2, but the job has ranks 0 to 1"),
        ({}, {"rank": -1}, "intruder has rank -1, but the job has ranks 0 to 1"),
    ],
)
def test_a_worker_that_does_not_fit_is_told_why(changes: dict, options: dict, reason: str) -> None:
    def intrude(server: Server) -> None:
        with pytest.raises(RemoteProtocolError, match=reason):
            Worker(server.address, **{"rank": 0, "size": SIZE, "name": "intruder", **options}, config=config(**changes))

    job_survives(Server(HERE, 2, CONFIG), intrude)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rank": 0, "size": SIZE}, "intruder has rank 0, which w1 holds"),
        ({"rank": 1, "size": 999}, r"intruder trains another model \(3996 bytes in 0 tensors\) than w1 \(4000 bytes"),
        ({"rank": 1, "size": SIZE, "tensors": [Tensor("a", (10, 100))]}, r"\(4000 bytes in 1 tensors\) than w1"),
    ],
)
def test_a_worker_that_does_not_fit_the_others_is_told_why(options: dict, reason: str) -> None:
    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served = pool(serve, server)
        first = Raw(server.address)      # connections are examined in the order they came
        first.hello()
        with pytest.raises(RemoteProtocolError, match=reason):
            Worker(server.address, name="intruder", config=CONFIG, **options)
        second = pool(work, server, 1, gradients(1, 1, SIZE)[0])
        message = first.receive()
        assert isinstance(message, Welcome)
        assert message.workers == 2
        first.tcp.close()
    assert "lost w1" in str(served.exception())
    assert "lost w1" in str(second.exception())


def test_tensors_must_agree_and_reach_the_server() -> None:
    tensors = [Tensor("weight", (10, 90)), Tensor("bias", (100,), "float32")]
    values = gradients(2, 1, SIZE)
    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served = pool(serve, server)
        workers = [pool(work, server, rank, values[rank], tensors=tensors) for rank in range(2)]
    assert len(served.result()) == 1
    assert server.tensors == tensors
    assert server.size == SIZE
    assert all(len(worker.result().averages) == 1 for worker in workers)


# --- versions and secrets, both ways ---


def test_a_server_of_another_version_is_named() -> None:
    with Pool() as pool, socket.create_server(HERE) as listener:
        worker = pool(Worker, listener.getsockname(), 0, SIZE, CONFIG)
        tcp, _ = listener.accept()
        tcp.sendall(encode(Challenge(2, bytes(40))))      # whose body may look different
        error = worker.exception()
        tcp.close()
    assert isinstance(error, RemoteProtocolError)
    assert "the server speaks protocol version 2, this worker 1; install the same release on both" in str(error)


def test_a_worker_of_another_version_is_told() -> None:
    def other_version(server: Server) -> None:
        raw = Raw(server.address)
        raw.hello(version=2)
        message = raw.receive()
        assert isinstance(message, Error)
        assert message.text.startswith("the peer speaks protocol version 2, this side 1")
        assert raw.receive() is None

    job_survives(Server(HERE, 2, CONFIG), other_version)


def test_a_server_that_does_not_know_the_secret_is_refused() -> None:
    with Pool() as pool, socket.create_server(HERE) as listener:
        worker = pool(Worker, listener.getsockname(), 0, SIZE, CONFIG)
        tcp, _ = listener.accept()
        tcp.sendall(encode(Challenge(1, bytes(16))))
        tcp.recv(1 << 16)
        welcome = Welcome(1, session=1, udp_port=9, workers=1, share=None, order="sequential", error_feedback=False)
        tcp.sendall(encode(replace(welcome, mac=authenticate(b"guess", "server", bytes(32), welcome))))
        error = worker.exception()
        tcp.close()
    assert isinstance(error, RemoteProtocolError)
    assert str(error) == "the server does not know this job's secret"


def test_an_order_that_a_worker_does_not_know_is_named() -> None:
    with Pool() as pool, socket.create_server(HERE) as listener:
        worker = pool(Worker, listener.getsockname(), 0, SIZE, CONFIG)
        tcp, _ = listener.accept()
        nonce = bytes(16)
        tcp.sendall(encode(Challenge(1, nonce)))
        decoder = ControlDecoder()
        decoder.feed(tcp.recv(1 << 16))
        [hello] = decoder
        welcome = Welcome(1, session=1, udp_port=9, workers=1, share=None, order="oldest", error_feedback=False)
        mac = authenticate(CONFIG.secret, "server", nonce + bytes.fromhex(hello.nonce), welcome)
        tcp.sendall(encode(replace(welcome, mac=mac)))
        error = worker.exception()
        tcp.close()
    assert isinstance(error, RemoteProtocolError)
    assert "in the order 'oldest'; this worker knows sequential, rotating, by_norm" in str(error)


def test_a_hello_that_answers_another_challenge_is_refused() -> None:
    def replay(server: Server) -> None:
        raw = Raw(server.address)
        hello = Hello(
            version=1, rank=0, name="w1", udp_port=9, frame_bytes=CONFIG.frame_bytes, size_bytes=4 * SIZE, chunks=3,
            tensors=[], nonce="00" * 16,
        )
        recorded = replace(hello, mac=authenticate(CONFIG.secret, "worker", bytes(16) + bytes(16), hello))
        raw.tcp.sendall(encode(recorded))
        assert isinstance(raw.receive(), Challenge)
        assert raw.receive() == Error("'w1' does not know this job's secret")

    job_survives(Server(HERE, 2, CONFIG), replay)


# --- strangers ---


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 100, b"\0\0\0\x01\x0a", b"\0\0\0\x03\x02{}",
     b"\0\0\x27\x11\x02" + b"[" * 10000, encode(Error("no")), bytes(4096)],
)
def test_garbage_from_a_stranger_does_not_stop_the_job(garbage: bytes) -> None:
    def babble(server: Server) -> None:
        raw = Raw(server.address)
        raw.tcp.sendall(garbage)
        raw.tcp.shutdown(socket.SHUT_WR)

    job_survives(Server(HERE, 2, CONFIG), babble)


def test_a_port_scan_does_not_stop_the_job() -> None:
    job_survives(Server(HERE, 2, CONFIG), lambda server: Raw(server.address).reset())


def test_a_stranger_that_says_nothing_is_turned_away() -> None:
    def keep_quiet(server: Server) -> None:
        raw = Raw(server.address)
        assert isinstance(raw.receive(), Challenge)
        assert raw.receive() == Error("a worker did not send HELLO within 1 s")

    job_survives(Server(HERE, 2, impatient(handshake=1.0)), keep_quiet)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": "0"}, {"rank": None}, {"rank": 0.5}, {"name": 7}, {"udp_port": 0}, {"udp_port": 65536},
        {"size_bytes": 0}, {"size_bytes": 4001}, {"size_bytes": 4e3}, {"chunks": 4}, {"nonce": "xyz"}, {"nonce": 5},
        {"tensors": [1]}, {"tensors": [["a", 5, "float32"]]}, {"tensors": [["a", [5], "float32"]]}, {"tensors": None},
    ],
    ids=str,
)
def test_a_malformed_hello_of_one_who_knows_the_secret_does_not_stop_the_job(changes: dict) -> None:
    def malformed(server: Server) -> None:
        raw = Raw(server.address)
        raw.hello(**changes)
        assert isinstance(raw.receive(), Error)

    job_survives(Server(HERE, 2, CONFIG), malformed)


# --- not all come, or one goes again ---


def test_who_did_not_come_is_counted_and_the_last_refusal_quoted() -> None:
    server = Server(HERE, 2, impatient(connect=3.0))
    with Pool() as pool:
        served = pool(serve, server)
        waits = pool(work, server, 1, gradients(1, 1, SIZE)[0])
        with pytest.raises(RemoteProtocolError, match="secret"):
            Worker(server.address, 0, SIZE, config(secret=b"typo"))
    error = served.exception()
    assert isinstance(error, PeerLostError)
    assert "1 of 2 workers (ranks [0]) did not connect within 3 s; last refused: 'w1' does not know" in str(error)
    assert "the server refused: 1 of 2 workers (ranks [0]) did not connect" in str(waits.exception())


def test_no_server() -> None:
    with socket.create_server(HERE) as listener:
        address = listener.getsockname()
    with pytest.raises(PeerLostError, match=f"no server at 127.0.0.1:{address[1]} within 0.2 s .*; is it running?"):
        Worker(address, 0, SIZE, impatient(connect=0.2))


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_worker_that_is_gone_before_the_first_round_is_named(leave: str) -> None:
    server = Server(HERE, 2, CONFIG)
    with Pool() as pool:
        served = pool(serve, server)
        raw = Raw(server.address)
        raw.hello()
        again = Raw(server.address)
        again.hello(name="again")
        assert again.receive() == Error("again has rank 0, which w1 holds")      # so w1 is admitted
        raw.tcp.close() if leave == "close" else raw.reset()
        other = pool(work, server, 1, gradients(1, 1, SIZE)[0])
    assert isinstance(served.exception(), PeerLostError)
    assert served.exception().peer == "w1"
    assert "lost w1" in str(served.exception())
    assert "lost w1" in str(other.exception())


# --- ports ---


def test_the_servers_tcp_port_is_in_use() -> None:
    with Server(HERE, 1, CONFIG) as server, pytest.raises(PortInUseError) as caught:
        Server(server.address, 1, CONFIG)
    assert f"TCP port {server.address[1]} on 127.0.0.1 is in use" in str(caught.value)
    assert "choose another port for the server" in str(caught.value)


def taken_port() -> tuple[socket.socket, int]:
    """A UDP socket, and the data_port_base whose first port it holds."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(HERE)
    return sock, sock.getsockname()[1]


def test_a_udp_port_of_the_server_is_in_use() -> None:
    sock, port = taken_port()
    with sock, Pool() as pool:
        server = Server(HERE, 1, config(data_port_base=port))
        served = pool(serve, server)
        worker = pool(work, server, 0, gradients(1, 1, SIZE)[0])
        assert isinstance(served.exception(), PortInUseError)
        assert f"UDP port {port} on 127.0.0.1 is in use" in str(served.exception())
        assert "choose another data_port_base" in str(served.exception())
        assert "the server refused: UDP port" in str(worker.exception())


def test_a_udp_port_of_a_worker_is_in_use() -> None:
    sock, port = taken_port()
    with sock, Pool() as pool:
        server = Server(HERE, 1, CONFIG)
        served = pool(serve, server)
        with pytest.raises(PortInUseError, match=f"UDP port {port}"):
            Worker(server.address, 1, SIZE, config(data_port_base=port - DATA_PORT_COUNT // 2 - 1))
        work(server, 0, gradients(1, 1, SIZE)[0])
        assert len(served.result()) == 1


def test_data_ports_lie_in_the_block_that_a_tc_filter_matches() -> None:
    values = gradients(2, 1, SIZE)
    ports: Future[list[tuple[int, int]]] = Future()

    def look(server: Server) -> None:
        channels = server.loop.channels
        ports.set_result([(c.udp.getsockname()[1], c.udp.getpeername()[1]) for c in channels])

    block = config(data_port_base=DATA_PORT_BASE)
    server = Server(HERE, 2, block)
    with Pool() as pool:
        all_ends = [pool(serve, server, look), *(pool(work, server, rank, values[rank], block) for rank in range(2))]
    if any(isinstance(end.exception(), PortInUseError) for end in all_ends):
        pytest.skip("another program on this machine holds a port of the data block")
    assert all_ends[0].exception() is None
    assert ports.result() == [(52224, 52352), (52225, 52353)]
    assert all(port & 0xFF00 == 0xCC00 for pair in ports.result() for port in pair)


# --- wrong arguments ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Server(HERE, 0, CONFIG), "workers is 0; at least one is needed"),
        (lambda: Worker(HERE, 0, 0, CONFIG), "size is 0; a gradient has at least one value"),
        (lambda: Worker(HERE, 0, 5, CONFIG, tensors=[Tensor("a", (2, 3))]), "tensors hold 6 values, but size is 5"),
        (lambda: Server(("192.0.2.1", 0), 1, CONFIG), "cannot bind TCP port 0 on 192.0.2.1"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        make()


def test_the_secret_is_not_printed() -> None:
    assert "loopback" not in repr(CONFIG)
    assert "secret" not in repr(CONFIG)
    assert asdict(Timeouts()).keys() == {"handshake", "keepalive", "connect", "stall"}
