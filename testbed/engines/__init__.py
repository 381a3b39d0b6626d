"""Engines: how a scenario is run. An engine is one module with a `main`, and one line in `ENGINES`.

`python -m testbed.engines.NAME FOLDER` runs what the folder's `run.json` says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from testbed.isolation import ISOLATE

ENGINES: dict[str, list[str]] = {"mininet": ISOLATE, "local": [], "single": []}
"""Name of the engine, and the command that it runs under."""


def command(engine: str, folder: Path) -> list[str]:
    """The command line that runs an engine on a prepared run folder."""
    return [*ENGINES[engine], sys.executable, "-m", f"testbed.engines.{engine}", str(folder)]
