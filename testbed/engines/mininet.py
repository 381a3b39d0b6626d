"""Engine `mininet`: real processes on an emulated network, in namespaces of their own.

`python -m testbed.engines.mininet FOLDER` runs as process 1 of new network, mount and process namespaces
(unshare(1)), so the kernel removes every process, interface and qdisc when it ends, even by SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from mininet.log import setLogLevel

from testbed import shaping
from testbed.bursts import choose_injector, link_ends
from testbed.engines.supervisor import Parent, Supervisor, engine_main
from testbed.results import RunFolder
from testbed.topology import build_network


def run(folder: RunFolder, parent: Parent) -> None:
    """Build the network, shape and verify it, run the processes, take it all down."""
    scenario = folder.scenario()
    topology = scenario.topology
    ends = shaping.link_ends(topology)
    network = build_network(topology)
    try:
        network.start()
        links = shaping.apply(network, ends)
        injector = choose_injector("auto")
        try:
            injector.prepare(link_ends(scenario))
            folder.update(links=links, injector=injector.name)
            parent.tell(stage=f"network is up: {topology.workers} workers, injector {injector.name}")

            def spawn(name: str, argv: list[str], output: TextIO) -> subprocess.Popen:
                return network[name].popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

            Supervisor(folder, parent, injector, spawn, lambda: shaping.queue_drops(network, ends)).run()
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
