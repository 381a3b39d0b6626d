"""Every action on real traffic over the star, for tests/test_vocabulary.py; run as star_script.py is.

    vocabulary_script.py bpf|netem

Prints what it measured as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import tiny
from mininet.log import setLogLevel
from mininet.net import Mininet
from star_script import DATAGRAMS, LINK, PAYLOAD, TRAIN, star, transmit, udp_pair

from protocol.config import DATA_PORT_BASE
from scenarios import Scenario
from testbed import shaping
from testbed.bursts import Injector, choose_injector, link_ends
from testbed.bursts.director import Director

AT = {"at": {"iteration": 0}, "duration": "1 iteration", "selector": ["w1"]}
LOSSES = [
    {"loss": "30%", "correlation": "60%"},
    {"gemodel": {"p": "2%", "r": "10%"}},
    {"gemodel": {"p": "2%", "r": "10%", "bad": "60%", "good": "1%"}},
    {"state": {"p13": "2%", "p31": "20%", "p32": "30%", "p23": "60%", "p14": "5%"}},
]


STAR = {"workers": 2, "link": {"rate": "1gbit"}}


def scenario(*events: dict, topology: dict = STAR) -> Scenario:
    return tiny.scenario(topology=topology, events=[AT | event for event in events])


@contextlib.contextmanager
def staged(net: Mininet, name: str, *events: dict, topology: dict = STAR) -> Iterator[tuple[Injector, Director]]:
    """The events, prepared and not yet begun."""
    plan = scenario(*({"at": {"iteration": n}} | event for n, event in enumerate(events)), topology=topology)
    injector = choose_injector(name, plan.events)
    injector.prepare(link_ends(plan))
    try:
        with Director(plan, injector, net) as director:
            yield injector, director
    finally:
        injector.close()


def spells(lost: np.ndarray) -> float:
    """Mean length of the runs of losses."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], lost, [0]])))
    return float((edges[1::2] - edges[::2]).mean())


def arrivals(net: Mininet, source: str, target: str, count: int, pause: float) -> tuple[list[int], list[float]]:
    """Single numbered datagrams, a pause (s) after each: their numbers and delays (s) in the order of arrival."""
    sender, receiver = udp_pair(net, source, target, DATA_PORT_BASE, PAYLOAD)
    sent, numbers, delays = np.zeros(count), [], []
    receiver.setblocking(False)

    def drain(until: float) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                for at in range(0, len(data := receiver.recv(1 << 16)), PAYLOAD):
                    number = int.from_bytes(data[at : at + 4], "little")
                    numbers.append(number)
                    delays.append(time.monotonic() - sent[number])
                continue
            if time.monotonic() >= until:
                return
            time.sleep(0.0002)

    with sender, receiver:
        for number in range(count):
            sent[number] = time.monotonic()
            sender.send(number.to_bytes(4, "little") + bytes(PAYLOAD - 4))
            drain(sent[number] + pause)
        drain(time.monotonic() + 0.3)
    return numbers, delays


def chains(net: Mininet, name: str) -> Iterator[dict[str, object]]:
    for fields in LOSSES:
        with staged(net, name, {"action": "loss"} | fields) as (injector, director):
            (key,) = injector.counters()
            director.start(0)
            lost = ~np.concatenate([transmit(net, "w1", "srv", DATA_PORT_BASE) for _ in range(4)])
            director.stop(0)
            counts = injector.counters()[key]
            assert counts.seen == 4 * DATAGRAMS
            queues = shaping.queue_drops(net, shaping.link_ends(scenario().topology))
            assert counts.dropped == lost.sum(), (fields, counts, int(lost.sum()), queues)
            assert transmit(net, "w1", "srv", DATA_PORT_BASE, 10 * TRAIN).all()
            yield {"asked": director.event(0).expected_loss, "lost": float(lost.mean()), "spell": spells(lost)}


def partition(net: Mininet, name: str) -> dict[str, object]:
    cut = {"action": "partition", "duration": "1s"}
    with staged(net, name, {"action": "loss", "loss": "1%"}, cut) as (injector, director):
        before = injector.counters()
        director.start(0)
        director.start(1)
        ways = [("w1", "srv", DATA_PORT_BASE), ("srv", "w1", DATA_PORT_BASE), ("w1", "srv", 9), ("srv", "w1", 9)]
        assert not any(transmit(net, *way, 5 * TRAIN).any() for way in ways)
        assert transmit(net, "w2", "srv", DATA_PORT_BASE, 5 * TRAIN).all(), "w2 is on the other side"
        counts = {key: now.dropped - before[key].dropped for key, now in injector.counters().items()}
        assert all(dropped >= 2 * 5 * TRAIN for dropped in counts.values()), counts
        director.stop(1)
        assert transmit(net, "w1", "srv", 9, 5 * TRAIN).all()
        assert transmit(net, "w1", "srv", DATA_PORT_BASE, 5 * TRAIN).mean() > 0.8
        director.stop(0)
        assert transmit(net, "w1", "srv", DATA_PORT_BASE, 5 * TRAIN).all()
        return {"dropped": sum(counts.values())}


def duplicate(net: Mininet, name: str) -> dict[str, object]:
    report: dict[str, object] = {}
    for direction, way in (("to_server", ("w1", "srv")), ("to_worker", ("srv", "w1"))):
        with staged(net, name, {"action": "duplicate", "duplicate": "30%", "direction": direction}) as (_, director):
            director.start(0)
            numbers, _ = arrivals(net, *way, 2000, 0)
            director.stop(0)
            after, _ = arrivals(net, *way, 200, 0)
        assert set(numbers) == set(range(2000))
        assert sorted(after) == list(range(200))
        report[direction] = len(numbers) / 2000 - 1
        assert abs(len(numbers) / 2000 - 1.3) < 0.05, report
    return report


def servers_link(net: Mininet, name: str) -> dict[str, object]:
    """A loss on the server's link hits both workers."""
    with staged(net, name, {"action": "loss", "loss": "50%", "selector": "server"}) as (injector, director):
        director.start(0)
        before = injector.counters()["srv", "to_server"]
        lost = [1 - transmit(net, worker, "srv", DATA_PORT_BASE, 100 * TRAIN).mean() for worker in ("w1", "w2")]
        assert injector.counters()["srv", "to_server"].seen - before.seen == 200 * TRAIN
        assert all(abs(share - 0.5) < 0.05 for share in lost), lost
        return {"lost": lost}


def links(net: Mininet, name: str) -> dict[str, object]:
    """Rates and link states, which no injector has a part in."""
    down = {"action": "link_down", "duration": "1s"}
    with staged(net, name, {"action": "rate", "rate": "20mbit"}, down) as (_, director):
        ends = shaping.link_ends(scenario().topology)

        def rates() -> dict[str, float]:
            return {state["interface"]: state["rate_bps"] for state in shaping.read_back(net, ends)}

        before = rates()
        director.start(0)
        assert rates() == before | {"w1-eth0": 20e6, "s1-w1": 20e6}
        begin = time.monotonic()
        assert transmit(net, "w1", "srv", DATA_PORT_BASE, 500).all()
        took = time.monotonic() - begin - 0.3
        director.stop(0)
        assert rates() == before
        director.start(1)
        assert not transmit(net, "w1", "srv", DATA_PORT_BASE, 5 * TRAIN).any()
        assert not transmit(net, "srv", "w1", DATA_PORT_BASE, 5 * TRAIN).any()
        director.stop(1)
        deadline = time.monotonic() + 5
        while not transmit(net, "w1", "srv", DATA_PORT_BASE, TRAIN).all() and time.monotonic() < deadline:
            pass
        assert transmit(net, "srv", "w1", DATA_PORT_BASE, 5 * TRAIN).all()
        # 500 datagrams of 442 bytes on the wire, less what the bucket holds.
        return {"seconds": took, "least": (500 * 442 - 15140) * 8 / 20e6}


def late(net: Mininet, name: str) -> dict[str, object]:
    """Delay, reordering and damage, which take netem; and what they become together with a loss."""
    report: dict[str, object] = {}
    delay = {"action": "delay", "latency": "20ms", "jitter": "4ms", "distribution": "normal"}
    with staged(net, name, delay, {"action": "loss", "loss": "50%"}) as (injector, director):
        director.start(0)
        _, delays = arrivals(net, "w1", "srv", 300, 0.003)
        report["delay"] = [float(np.mean(delays)), float(np.std(delays))]
        assert len(delays) == 300
        director.start(1)
        numbers, delays = arrivals(net, "w1", "srv", 300, 0.003)
        report["delay_and_loss"] = [float(np.mean(delays)), len(numbers) / 300]
        assert injector.counters()["w1", "to_server"].dropped == 300 - len(numbers)
        director.stop(0)
        numbers, delays = arrivals(net, "w1", "srv", 100, 0)
        report["loss_alone"] = [float(np.median(delays)), len(numbers) / 100]
    with staged(net, name, {"action": "reorder", "reorder": "25%", "latency": "10ms"}) as (_, director):
        director.start(0)
        numbers, _ = arrivals(net, "w1", "srv", 300, 0.002)
        assert sorted(numbers) == list(range(300))
        report["overtaken"] = float(np.mean(np.diff(numbers) < 0))
        director.stop(0)
        numbers, _ = arrivals(net, "w1", "srv", 100, 0)
        assert numbers == list(range(100))
    with staged(net, name, {"action": "corrupt", "corrupt": "20%"}) as (injector, director):
        director.start(0)
        numbers, _ = arrivals(net, "w1", "srv", 1000, 0)
        report["corrupt"] = 1 - len(numbers) / 1000
        assert injector.counters()["w1", "to_server"].dropped == 0, "the host drops them, not the link"
        director.stop(0)
        assert transmit(net, "w1", "srv", DATA_PORT_BASE, 5 * TRAIN).all()
    return report


def main(name: str) -> dict[str, object]:
    with star(2, LINK) as net:
        report = {
            "chains": list(chains(net, name)),
            "partition": partition(net, name),
            "duplicate": duplicate(net, name),
            "servers_link": servers_link(net, name),
            "links": links(net, name),
        }
        if name == "netem":
            report |= late(net, name)
    return report


if __name__ == "__main__":
    setLogLevel("critical")
    print(json.dumps(main(sys.argv[1])))
