"""The largest memory and disk that a run takes, sampled while it goes on.

Memory is the proportional set size (PSS, proc_pid_smaps_rollup(5)) of the engine's process and all below it: what
several processes share, as the libraries of torch, counts once. A process whose PSS may not be read counts by its RSS.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil

INTERVAL = 1.0      # s between samples


class Footprint:
    """Peaks of a process tree's memory and of a folder's size, in bytes. A context manager."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_memory = self.peak_disk = 0

    def __enter__(self) -> Footprint:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.sample()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self.sample()

    def sample(self) -> None:
        """Look now."""
        self.peak_memory = max(self.peak_memory, memory(self._pid))
        self.peak_disk = max(self.peak_disk, size(self._folder))


def memory(pid: int) -> int:
    """Bytes of memory of a process and all below it; those that have just ended count nothing."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += _pss(process.pid) or process.memory_info().rss
    return total


def _pss(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), None)
    return int(line.split()[1]) * 1024 if line else None


def size(folder: Path) -> int:
    """Bytes of the files in a folder; one that goes away meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def readable(size_: int) -> str:
    """As `3.1 GiB`, `24 MiB` or `180 KiB`."""
    if size_ >= 2**30:
        return f"{size_ / 2**30:.1f} GiB"
    return f"{size_ / 2**20:.0f} MiB" if size_ >= 2**20 else f"{size_ / 2**10:.0f} KiB"
