"""Engine `local`: the same processes on the loopback interface. No root, no emulated network.

Rates are kept by pacing alone, and losses are drawn with a seed where frames are received.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from testbed.bursts.local import LocalInjector
from testbed.engines.supervisor import Parent, Supervisor, engine_main
from testbed.results import NODES, RunFolder

PR_SET_PDEATHSIG = 1      # linux/prctl.h


def _die_with_parent() -> None:
    """In the child: be killed when the engine is, however it dies (prctl(2); Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(name: str, argv: list[str], output: TextIO) -> subprocess.Popen:
    """Start one node's process."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_die_with_parent
    )


def main(argv: list[str]) -> int:
    """Run the engine on the folder named in `argv`."""
    parent = Parent()
    os.chdir(argv[0])
    folder = RunFolder(Path("."))

    def body() -> None:
        injector = LocalInjector(Path(NODES), folder.scenario().topology.worker_names)
        folder.update(injector=injector.name)
        Supervisor(folder, parent, injector, spawn).run()

    return engine_main(folder, parent, body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
