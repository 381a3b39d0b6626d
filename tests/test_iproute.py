"""Many commands a process, and the one that failed is the one that is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from private_net import needs_root

from testbed import iproute
from testbed.isolation import ISOLATE


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """`tc` and `ip` that note how they were started and what they read."""
    for name in ("tc", "ip"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\ncat\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_neighbours_of_one_tool_share_a_process(tools):
    plan = [["ip", "a"], ["tc", "b", "1"], ["tc", "c", "of two words"], ["ip", "d"], ["echo", "e"], ["echo", "f"]]
    assert iproute.run(plan) == "ip a\ntc -batch -\nb 1\nc 'of two words'\nip d\ne\nf\n"


def test_what_is_not_there_is_named(tools, tmp_path):
    (tmp_path / "tc").unlink()
    if shutil.which("tc"):
        pytest.skip("this system has its tc in /usr/bin")
    with pytest.raises(iproute.CommandError, match=r"`tc` is not installed \(apt install iproute2\)"):
        iproute.run([["tc", "qdisc"]])


BAD = """
from testbed import iproute
try:
    iproute.run([[*"tc qdisc add dev lo root pfifo limit 7".split()], [*"tc qdisc add dev lo root nonsense".split()],
                 [*"tc qdisc change dev lo root pfifo limit 9".split()]])
except iproute.CommandError as error:
    print(error)
print(iproute.run([["tc", "-j", "qdisc", "show", "dev", "lo"]]))
"""


@pytest.mark.root
@needs_root
def test_the_command_that_failed_is_named_and_the_last_one_run():
    done = subprocess.run([*ISOLATE, sys.executable, "-c", BAD], capture_output=True, text=True, check=True)
    said, shown = done.stdout.splitlines()[:2]
    assert said.startswith("`tc qdisc add dev lo root nonsense` failed: ")
    assert "Command failed" not in said
    assert json.loads(shown)[0]["options"]["limit"] == 7
