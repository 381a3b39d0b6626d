"""Real traffic over emulated networks, for the root tests: run by tests/private_net.py in namespaces of its own.

    star_script.py bursts bpf|netem     conformance of an injector
    star_script.py shaping              rate, queue limit and read-back of the links
    star_script.py latency              delays as the kernel reports them and as packets meet them (netem)
    star_script.py fabric JSON HOST...  a topology: all hosts reach each other; what arrives from some of them at once
    star_script.py hang bpf|netem       builds all, prints its network namespace, waits to be killed

One process plays all hosts: its sockets are opened in the hosts' namespaces. Prints what it measured as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
import tiny
from mininet.log import setLogLevel
from mininet.net import Mininet
from pydantic import TypeAdapter
from scipy import stats

from protocol.config import DATA_PORT_BASE, DATA_PORT_COUNT
from scenarios import Link, Scenario, Star
from scenarios.topology import AnyTopology
from testbed import shaping
from testbed.bursts import Counters, Injector, InjectorError, LinkEnd, choose_injector
from testbed.bursts.actions import traffic
from testbed.topology import build_network, host_ip, switch_interface

UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE = 103, 104, 33
PAYLOAD, TRAIN = 400, 44  # bytes a datagram, datagrams a send
DATAGRAMS = 500 * TRAIN
LOSSES = (0.001, 0.01, 0.1, 0.4, 0.7, 0.99)
CLONE_NEWNET = 0x40000000
LINK = Link.model_validate({"rate": "1gbit"})
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(net: Mininet, host: str) -> Iterator[None]:
    """Be in the network namespace of a host; sockets opened there stay there."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{net[host].pid}/ns/net", os.O_RDONLY)
    try:
        assert _libc.setns(there, CLONE_NEWNET) == 0
        yield
    finally:
        assert _libc.setns(here, CLONE_NEWNET) == 0
        os.close(here)
        os.close(there)


@contextlib.contextmanager
def emulated(scenario: Scenario) -> Iterator[Mininet]:
    """The network of a scenario, with the hosts of its cross traffic."""
    net = build_network(scenario.topology)
    try:
        traffic.add_hosts(net, scenario)
        net.start()
        shaping.apply(net, [*shaping.link_ends(scenario.topology), *traffic.link_ends(scenario)])
        yield net
    finally:
        net.stop()


def star(workers: int, link: Link) -> contextlib.AbstractContextManager[Mininet]:
    return emulated(tiny.scenario(topology=Star(workers=workers, link=link)))


def udp_pair(net: Mininet, source: str, target: str, port: int, payload: int):
    """A sender of datagram trains and a receiver that lets the kernel join them again."""
    with inside(net, target):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 128 << 20)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        receiver.bind((host_ip(target), port))
    return udp_sender(net, source, target, port, payload), receiver


def udp_sender(net: Mininet, source: str, target: str, port: int, payload: int) -> socket.socket:
    """A socket whose sends leave as trains of datagrams of `payload` bytes."""
    with inside(net, source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, payload)
        sender.connect((host_ip(target), port))
    return sender


def transmit(net: Mininet, source: str, target: str, port: int, count: int = DATAGRAMS) -> np.ndarray:
    """Send `count` numbered datagrams in trains; returns which of them arrived."""
    sender, receiver = udp_pair(net, source, target, port, PAYLOAD)
    frames = np.zeros((count, PAYLOAD // 4), np.uint32)
    frames[:, 0] = np.arange(count)
    arrived = np.zeros(count, bool)

    def drain(timeout: float) -> None:
        receiver.settimeout(timeout)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            while True:
                data = receiver.recv(1 << 16)
                arrived[np.frombuffer(data, np.uint32).reshape(-1, PAYLOAD // 4)[:, 0]] = True

    with sender, receiver:
        for start in range(0, count, TRAIN):
            sender.send(memoryview(frames[start : start + TRAIN]).cast("B"))
            drain(0)
        # A frame stays charged to its sender until it is read, so a host that stands still loses none of them here.
        give_up = time.monotonic() + 30
        while unread(sender) and time.monotonic() < give_up:
            drain(0.01)
        drain(0.3)  # netem takes the charge off what it delays
    return arrived


def unread(sender: socket.socket) -> int:
    """Bytes that have left this socket and no reader has taken yet (SIOCOUTQ, udp(7))."""
    return struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0]


def tcp_transfer(net: Mininet, source: str, target: str, port: int, size: int) -> int:
    """Send `size` bytes by TCP; returns how many arrived."""
    with inside(net, target):
        listener = socket.create_server((host_ip(target), port))
    with inside(net, source):
        sender = socket.create_connection((host_ip(target), port), timeout=10)
    receiver, _ = listener.accept()
    received = 0
    with listener, receiver, sender:
        for _ in range(size // 65536):
            sender.sendall(bytes(65536))
            received += len(receiver.recv(65536, socket.MSG_WAITALL))
    return received


def runs_probability(arrived: np.ndarray) -> float:
    """Probability of so few, or so many, runs of losses if each datagram was drawn for on its own; exact.

    Given `lost` losses among n datagrams, all orders are equally likely, and the number of runs of losses is
    hypergeometric: `lost` draws from n, of which n - lost + 1 count (Wald and Wolfowitz 1940). One draw for a whole
    train would leave a 44th of the runs.
    """
    lost = np.concatenate(([False], ~arrived))
    runs = np.count_nonzero(lost[1:] & ~lost[:-1])
    n, losses = len(arrived), int(lost.sum())
    distribution = stats.hypergeom(n, n - losses + 1, losses)
    return float(2 * min(distribution.cdf(runs), distribution.sf(runs - 1)))


def lossy(net: Mininet, injector: Injector, link: LinkEnd, port: int, loss: float) -> dict[str, float]:
    """One burst of `loss` on a link: counted, delivered and drawn as it should be, and none of it afterwards.

    The kernel's generator has no seed, so a right injector leaves the 99 % interval once in 100 bursts. That burst is
    tried once more with four times the datagrams; a right injector fails both once in 10,000 times, one whose
    probability is off by a quarter at 0.1 %, or by a fiftieth at 40 %, nearly always.
    """
    for count in (DATAGRAMS, 4 * DATAGRAMS):
        dropped, arrived = burst(net, injector, link, port, loss, count)
        low, high = stats.binom.interval(0.99, count, loss)
        inside_interval = low <= dropped <= high
        if inside_interval:
            break
    assert inside_interval, f"asked {loss}, {dropped} of {count} dropped; the 99 % interval is {low:.0f}..{high:.0f}"
    probability = runs_probability(arrived)
    assert probability > 1e-5, f"draws are not independent: such runs have a probability of {probability:.2g}"
    before = injector.counters()[link.key]
    assert transmit(net, *ends(link), port).all()
    assert delta(injector, link, before) == Counters(DATAGRAMS, 0)
    return {"loss": loss, "measured": dropped / count, "datagrams": count, "runs_probability": probability}


def burst(
    net: Mininet, injector: Injector, link: LinkEnd, port: int, loss: float, count: int
) -> tuple[int, np.ndarray]:
    """`count` datagrams under a loss: how many the injector dropped, which all are missing, and which arrived."""
    before = injector.counters()[link.key]
    injector.set_loss(*link.key, loss)
    arrived = transmit(net, *ends(link), port, count)
    injector.set_loss(*link.key, 0)
    counted = delta(injector, link, before)
    assert counted.seen == count
    assert arrived.sum() == count - counted.dropped
    return counted.dropped, arrived


def ends(link: LinkEnd) -> tuple[str, str]:
    """Sender and receiver."""
    return (link.host, "srv") if link.direction == "to_server" else ("srv", link.host)


def delta(injector: Injector, link: LinkEnd, before: Counters) -> Counters:
    now = injector.counters()[link.key]
    return Counters(now.seen - before.seen, now.dropped - before.dropped)


def bursts(name: str) -> dict[str, object]:
    first, last = DATA_PORT_BASE, DATA_PORT_BASE + DATA_PORT_COUNT - 1
    up = LinkEnd("w1", "to_server", switch_interface("w1"), "udp", "ingress")
    down = LinkEnd("w1", "to_worker", switch_interface("w1"), "udp", "egress")
    report: dict[str, object] = {"injector": name}
    with star(2, LINK) as net:
        injector = choose_injector(name)
        injector.prepare([up, down])
        assert injector.counters() == {up.key: Counters(0, 0), down.key: Counters(0, 0)}
        report["to_server"] = [lossy(net, injector, up, first, loss) for loss in LOSSES]
        report["to_worker"] = [lossy(net, injector, down, last, loss) for loss in (0.4, 0.7)]

        before = injector.counters()
        injector.set_loss(*up.key, 1)
        for port in (first - 1, last + 1):
            assert transmit(net, "w1", "srv", port, 10 * TRAIN).all()
        assert tcp_transfer(net, "w1", "srv", first, 1 << 20) == 1 << 20
        assert transmit(net, "w2", "srv", first, 10 * TRAIN).all()
        assert injector.counters() == before
        assert transmit(net, "srv", "w1", first, 10 * TRAIN).all()
        assert not transmit(net, "w1", "srv", last, 10 * TRAIN).any()
        for key, loss in ((("w2", "to_server"), 0.5), (up.key, 1.5)):
            try:
                injector.set_loss(*key, loss)
            except InjectorError:
                continue
            raise AssertionError(f"set_loss({key}, {loss}) was accepted")
        injector.close()
        injector.close()
        assert transmit(net, "w1", "srv", first, 10 * TRAIN).all()

        everything = LinkEnd("w1", "to_server", switch_interface("w1"), "all", "ingress")
        injector = choose_injector(name)
        injector.prepare([everything])
        report["all"] = [lossy(net, injector, everything, 5001, 0.4)]
        before = injector.counters()[everything.key]
        injector.set_loss(*everything.key, 0.05)
        assert tcp_transfer(net, "w1", "srv", 5001, 1 << 20) == 1 << 20
        assert delta(injector, everything, before).dropped > 0
        injector.close()
    return report


def measure(net: Mininet, seconds: float, sources: Sequence[str] = ("w1",)) -> dict[str, float]:
    """Unpaced senders of full frames to the server: the rate on the wire, and datagrams per recvmsg."""
    train = bytes(1472 * TRAIN)
    calls = size = 0
    pids = []
    sender, receiver = udp_pair(net, sources[0], "srv", 5001, 1472)
    senders = [sender, *(udp_sender(net, source, "srv", 5001, 1472) for source in sources[1:])]
    for sender in senders:
        pid = os.fork()
        if pid == 0:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sender.send(train)
            os._exit(0)
        pids.append(pid)
        sender.close()
    receiver.settimeout(1)
    start = None
    with receiver, contextlib.suppress(TimeoutError):
        while True:
            size += len(receiver.recv(1 << 16))
            stop = time.monotonic()
            start = start or stop
            calls += 1
    for pid in pids:
        os.waitpid(pid, 0)
    datagrams = size / 1472
    return {"rate": datagrams * 1514 * 8 / (stop - start), "datagrams_per_call": datagrams / calls}


def shape() -> dict[str, object]:
    report: dict[str, object] = {}
    link = Link.model_validate({"rate": "200mbit", "limit": 100})
    rates: list[float] = []
    ends = shaping.link_ends(Star(workers=1, link=link))
    with star(1, link) as net:
        report["links"] = shaping.read_back(net, ends)
        for _ in range(3):  # a machine that is busy for a moment is slow, and no machine is fast for one
            report |= measure(net, 1.5)
            rates.append(report["rate"])
            if report["rate"] >= 0.5 * link.rate:
                break
        report["rates"] = rates
        report["drops"] = shaping.queue_drops(net, ends)
        # Towards a port of a tenth of the rate, a burst longer than the queue loses what does not fit.
        slow = Link.model_validate({"rate": "2mbit", "limit": 100})
        port = switch_interface("srv")
        change = shaping.commands(slow, port, "switch")[3]
        _, error, status = net["s1"].pexec([word.replace("add", "change") for word in change])
        assert status == 0, error
        before = {entry["interface"]: entry["dropped"] for entry in shaping.queue_drops(net, ends)}
        sender, receiver = udp_pair(net, "w1", "srv", 5001, 1472)
        sender.setsockopt(socket.SOL_SOCKET, 32, 8 << 20)
        with sender, receiver:
            for _ in range(10):
                sender.send(bytes(1472 * 40))
            time.sleep(0.5)
        report["overflow"] = next(
            entry["dropped"] - before[port] for entry in shaping.queue_drops(net, ends) if entry["interface"] == port
        )
        try:
            shaping.verify(next(s for s in shaping.read_back(net, ends) if s["interface"] == port), LINK)
        except shaping.ShapingError as error:
            report["difference"] = str(error)
    return report


def latency() -> dict[str, object]:
    link = Link.model_validate({"rate": "100mbit", "latency": "5ms", "jitter": "0.5ms"})
    with star(1, link) as net:
        with inside(net, "srv"):
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind((host_ip("srv"), 5001))
        with inside(net, "w1"):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.connect((host_ip("srv"), 5001))
        round_trips = []
        with server, client:
            for _ in range(20):
                start = time.monotonic()
                client.send(b"ping")
                server.sendto(*server.recvfrom(16))
                client.recv(16)
                round_trips.append(time.monotonic() - start)
        links = shaping.read_back(net, shaping.link_ends(Star(workers=1, link=link)))
        return {"links": links, "round_trips": round_trips}


def fabric(text: str, *sources: str) -> dict[str, object]:
    topology = TypeAdapter(AnyTopology).validate_python(json.loads(text))
    ends = shaping.link_ends(topology)
    net = build_network(topology)
    try:
        net.start()
        links = shaping.apply(net, ends)
        hosts = topology.host_names
        round_trip = {}
        pinged = 0
        for source, target in permutations(hosts, 2):
            output, _, status = net[source].pexec(["ping", "-n", "-c", "1", "-W", "2", host_ip(target)])
            assert status == 0, f"{source} does not reach {target}"
            pinged += 1
            if target == "srv":
                round_trip[source] = float(re.search(r"time=([\d.]+) ms", output)[1]) / 1e3
        report = {"links": links, "pinged": pinged, "round_trip_s": round_trip, **measure(net, 1.5, sources)}
        return report | {"drops": shaping.queue_drops(net, ends)}
    finally:
        net.stop()


def hang(name: str) -> None:
    end = LinkEnd("w1", "to_server", switch_interface("w1"), "udp", "ingress")
    with star(1, LINK):
        injector = choose_injector(name)
        injector.prepare([end])
        injector.set_loss(*end.key, 1)
        print(os.stat("/proc/self/ns/net").st_ino, flush=True)
        signal.pause()


if __name__ == "__main__":
    setLogLevel("critical")
    task, *arguments = sys.argv[1:]
    tasks = {"bursts": bursts, "shaping": shape, "latency": latency, "fabric": fabric, "hang": hang}
    result = tasks[task](*arguments)
    print(json.dumps(result))
