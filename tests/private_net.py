"""Runs test scripts as root in network, mount and process namespaces of their own.

Whatever a script builds, and however it ends, the kernel takes it all back with the namespaces.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.isolation import ISOLATE

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root (network namespaces)")


def private(script: str, *arguments: str) -> list[str]:
    """The command that runs a script of this folder privately."""
    return [*ISOLATE, sys.executable, str(Path(__file__).with_name(script)), *arguments]


def run_private(script: str, *arguments: str, timeout: float = 600) -> str:
    """Run it to its end and return its stdout; its stderr is the text of the failure."""
    result = subprocess.run(private(script, *arguments), capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, f"{script} {' '.join(arguments)}:\n{result.stdout}{result.stderr}"
    return result.stdout
