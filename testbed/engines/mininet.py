"""Engine `mininet`: real processes on an emulated network, in namespaces of their own.

`python -m testbed.engines.mininet FOLDER` runs as process 1 of new network, mount and process namespaces
(unshare(1)), so the kernel removes every process, interface and qdisc when it ends, even by SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from mininet.log import setLogLevel

from testbed import shaping
from testbed.bursts import choose_injector, link_ends
from testbed.bursts.actions import traffic
from testbed.capture import CAPTURES, Capture
from testbed.engines.supervisor import Parent, Supervisor, engine_main
from testbed.results import RunFolder
from testbed.topology import build_network, switch_interface


def run(folder: RunFolder, parent: Parent) -> None:
    """Build the network, shape and verify it, run the processes, take it all down.

    That this kernel can do what the scenario asks, `dblp run` has seen before (:func:`testbed.runner.choose_engine`).
    """
    scenario = folder.scenario()
    topology = scenario.topology
    ends = [*shaping.link_ends(topology), *traffic.link_ends(scenario)]
    network = build_network(topology)
    try:
        traffic.add_hosts(network, scenario)
        network.start()
        links = shaping.apply(network, ends)
        injector = choose_injector("auto", scenario.events)
        try:
            injector.prepare(link_ends(scenario))
            folder.update(links=links, injector=injector.name)
            parent.tell(stage=f"network is up: {topology.workers} workers, injector {injector.name}")

            def spawn(name: str, argv: list[str], output: TextIO) -> subprocess.Popen:
                return network[name].popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

            capture: Capture | nullcontext = nullcontext()
            if folder.read()["capture"]:
                ports = [switch_interface(host, topology.switch_of(host)) for host in topology.host_names]
                capture = Capture(folder.path / CAPTURES, topology.link.mtu, ports, folder.log("capture"))
            with capture:
                Supervisor(folder, parent, injector, spawn, lambda: shaping.queue_drops(network, ends), network).run()
        finally:
            injector.close()
    finally:
        network.stop()


def main(argv: list[str]) -> int:
    """Run the engine on the folder named in `argv`."""
    parent = Parent()
    setLogLevel("warning")
    os.chdir(argv[0])
    folder = RunFolder(Path("."))
    return engine_main(folder, parent, lambda: run(folder, parent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
