"""Peaks of memory and disk."""

from __future__ import annotations

import subprocess
import sys

from testbed import footprint
from testbed.footprint import Footprint

HOLDS = "import sys; block = b'x' * (64 << 20); print('held', flush=True); sys.stdin.read()"


def test_the_memory_of_a_process_and_all_below_it_counts(tmp_path):
    shell = subprocess.Popen(
        ["sh", "-c", f'"{sys.executable}" -c "$0"; true', HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with shell, Footprint(shell.pid, tmp_path) as watched:
        shell.stdout.readline()
        watched.sample()
        shell.stdin.close()
        shell.wait()
    assert 64 << 20 < watched.peak_memory < 256 << 20
    assert footprint.memory(shell.pid) == 0, "it has ended"


def test_the_largest_size_of_the_folder_counts(tmp_path):
    process = subprocess.Popen(["true"])
    with process, Footprint(process.pid, tmp_path) as watched:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "large").write_bytes(bytes(3 << 20))
        watched.sample()
        (tmp_path / "a" / "large").unlink()
    assert watched.peak_disk >= 3 << 20
    assert footprint.size(tmp_path) < 1 << 20


def test_sizes_read_well():
    assert footprint.readable(180 << 10) == "180 KiB"
    assert footprint.readable(24 << 20) == "24 MiB"
    assert footprint.readable(3 << 30) == "3.0 GiB"
