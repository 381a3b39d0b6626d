"""What a run's metadata says of where and with what it ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "mininet", "numpy", "pandas", "scapy", "dblp-testbed")

SOURCES = ("protocol", "scenarios", "testbed", "analysis", "pyproject.toml")      # results may change: runs write them
def machine() -> dict[str, Any]:
    """CPU, cores this process may use, memory (GiB), kernel, operating system."""
    cpu = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    release = dict(line.split("=", 1) for line in _lines("/etc/os-release") if "=" in line)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cpu": cpu, "cores": cores(), "memory_gib": round(memory, 1), "kernel": platform.release(),
        "os": release.get("PRETTY_NAME", platform.system()).strip('"'),
    }


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Python and the packages a result may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the source tree and whether its code has changes; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changes)}
    except (OSError, subprocess.CalledProcessError):
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
