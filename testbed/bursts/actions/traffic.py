"""Action `traffic`: cross traffic from hosts of its own fills the switch's queue towards the chosen hosts.

So the loss is congestion at a queue, which data, control messages and the cross traffic share. The hosts are `x1`,
`x2`, ... on the switch of the server, with links like those of all hosts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from protocol.config import IP_UDP_HEADER
from scenarios import Scenario
from scenarios.events import TrafficEvent
from testbed import shaping
from testbed.bursts import actions
from testbed.errors import UserError
from testbed.topology import SERVER, SUBNET, host_interface, host_ip, host_mac, switch_interface

if TYPE_CHECKING:
    from mininet.net import Mininet

PORT = 5201  # the first; iperf3's
POLL = 0.005  # s between looks at the queues
SLACK = 0.2  # s for a busy host to empty them


class TrafficError(UserError):
    """Cross traffic cannot start; the text has the reason."""


def senders(scenario: Scenario) -> list[str]:
    """The hosts to add: as many as the event with the most senders needs; all events share them."""
    counts = [event.senders for event in scenario.events if isinstance(event, TrafficEvent)]
    return [f"x{number}" for number in range(1, max(counts, default=0) + 1)]


def add_hosts(network: Mininet, scenario: Scenario) -> None:
    """Add them to a network that is built and not yet started. Addresses come from the end of the subnet.

    Raises:
        TrafficError: the workers leave no addresses.
    """
    names = senders(scenario)
    if len(names) + len(network.hosts) > SUBNET.num_addresses - 2:
        raise TrafficError(f"{len(names)} hosts for cross traffic do not fit into {SUBNET} beside the workers")
    switch = scenario.topology.switch_of(SERVER)
    for number, name in enumerate(names, start=2):
        host = network.addHost(name, ip=f"{SUBNET[-number]}/{SUBNET.prefixlen}")
        port = switch_interface(name, switch)
        network.addLink(host, network[switch], intfName1=host_interface(name), intfName2=port)
        host.configDefault(**host.params)
        for other in scenario.topology.switches:
            # Elsewhere, the way to the server is the way to them.
            table = network[other].table
            way = port if other == switch else table.get(host_mac(SERVER))
            if way:
                table[host.MAC()] = way
    if names:
        network.staticArp()


def link_ends(scenario: Scenario) -> list[shaping.End]:
    """Both ends of the links of these hosts."""
    link, switch = scenario.topology.link, scenario.topology.switch_of(SERVER)
    return [
        end
        for name in senders(scenario)
        for end in (
            shaping.End(name, host_interface(name), "host", link),
            shaping.End(switch, switch_interface(name, switch), "switch", link),
        )
    ]


class Action(actions.Action):
    """Senders and sinks, started before the first iteration; `start` and `stop` only tell them."""

    def __init__(self, event: TrafficEvent, stage: actions.Stage) -> None:
        super().__init__(event, stage)
        self._sinks: list[subprocess.Popen] = []
        self._senders: dict[str, subprocess.Popen] = {}
        self._sent: dict[str, dict[str, int]] = {}

    def prepare(self) -> None:
        scenario = self.stage.scenario
        link, kind = scenario.topology.link, self.event.kind
        # A port for each event and target, so that none disturbs another.
        port = PORT + 100 * scenario.events.index(self.event)
        for target in self.event.selected(scenario.topology):
            sink = self._start(target, f"{kind}-sink", "--port", str(port))
            self._sinks.append(sink)
            self._await(sink, f"the sink of cross traffic on {target}")
            for name in senders(scenario)[: self.event.senders]:
                own = ["--host", host_ip(target), "--port", str(port)]
                if kind == "udp":
                    own += ["--rate", str(self.event.rate or link.rate), "--payload", str(link.mtu - IP_UDP_HEADER)]
                else:
                    own += ["--flows", str(self.event.flows)]
                self._senders[f"{name} to {target}"] = self._start(name, kind, *own)
            port += 1
        for name, sender in self._senders.items():
            self._await(sender, f"the cross traffic {name}")

    @staticmethod
    def _await(process: subprocess.Popen, what: str) -> None:
        if not process.stdout.readline():
            raise TrafficError(f"{what} did not start; see the engine's log")

    def _start(self, host: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "testbed.bursts.crosstraffic", *arguments]
        return self.stage.network[host].popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True, bufsize=1
        )

    def start(self) -> None:
        self._tell("start")

    def stop(self) -> None:
        self._tell("stop")
        self._sent = {name: json.loads(line) for name, line in self._answers() if line}
        self._await_queues()

    def _await_queues(self) -> None:
        """Wait until the queues are empty, or as long as they would take for it if gradients keep them filled.

        The senders cannot tell: of a train that the kernel has cut up, the last datagram alone stays charged to the
        socket, and where a queue drops that one the others still wait in it.
        """
        scenario, network = self.stage.scenario, self.stage.network
        ends = [*shaping.link_ends(scenario.topology), *link_ends(scenario)]
        longest = SLACK + sum(shaping.drain_time(cable.link) for cable in scenario.topology.cables())
        deadline = time.monotonic() + longest
        while shaping.waiting(network, ends) and time.monotonic() < deadline:
            time.sleep(POLL)

    def _tell(self, word: str) -> None:
        for name, process in self._senders.items():
            try:
                process.stdin.write(word + "\n")
            except OSError as error:
                raise TrafficError(f"the cross traffic {name} has ended: {error}; see the engine's log") from error

    def _answers(self) -> Iterator[tuple[str, str]]:
        for name, process in self._senders.items():
            yield name, process.stdout.readline()

    def facts(self) -> dict[str, object]:
        """`sent`: datagrams and bytes that each sender has sent so far."""
        return {"sent": self._sent}

    def close(self) -> None:
        for process in [*self._senders.values(), *self._sinks]:
            process.kill()
            process.wait()
        self._senders.clear()
        self._sinks.clear()


def local_problem(event: TrafficEvent) -> str | None:
    return "engine local has no queue to fill"
