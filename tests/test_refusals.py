"""What this machine cannot do is refused by the console program before anything starts, by the name of what is missing.

A `tc` in front of the real one refuses what a kernel without the option would refuse.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from private_net import needs_root

from testbed import doctor
from testbed.bursts.bpf import bpf_problem
from testbed.shaping import qdisc_problem

pytestmark = [pytest.mark.root, needs_root]


@pytest.fixture(autouse=True)
def _mininet() -> None:
    ready, reason = doctor.mininet_ready()
    if not ready:
        pytest.skip(reason)


def refusing(folder: Path, *kinds: str) -> str:
    """A PATH on which `tc` knows none of these qdiscs."""
    tools = folder / "tools"
    tools.mkdir()
    tc = tools / "tc"
    message = "Error: Specified qdisc kind is unknown."
    tc.write_text(
        "#!/bin/sh\n"
        f'for word; do case $word in {"|".join(kinds)}) echo "{message}" >&2; exit 2;; esac; done\n'
        f'exec {shutil.which("tc")} "$@"\n'
    )
    tc.chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def refusal(folder: Path, path: str | None, *arguments: str, engine: str = "mininet") -> str:
    """What `dblp run` of two scenarios says, of which the second asks too much."""
    (folder / "tiny.yaml").write_text(tiny.DOCUMENT)
    (folder / "asks.yaml").write_text("extends: tiny.yaml\nname: asks\n" + "".join(f"{line}\n" for line in arguments))
    out = folder / "out"
    command = [sys.executable, "-m", "testbed.cli", "run", str(folder / "tiny.yaml"), str(folder / "asks.yaml")]
    done = subprocess.run(
        [*command, "--engine", engine, "--out", str(out)], capture_output=True, text=True, timeout=120,
        env=os.environ | ({"PATH": path} if path else {}),
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert not out.exists(), "a run has begun"
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


LATENCY = "topology: {link: {latency: 5ms}}"


@pytest.mark.parametrize("engine", ["mininet", "auto"])
def test_latency_without_netem(tmp_path: Path, engine: str) -> None:
    if bpf_problem():
        pytest.skip("without netem this kernel has no injector, so engine mininet is refused as a whole")
    error = refusal(tmp_path, refusing(tmp_path, "netem"), LATENCY, engine=engine)
    assert re.search(r"topology.link: latency 0\.005 s and jitter 0 s need netem: .*CONFIG_NET_SCH_NETEM", error)
    assert "set both to 0ms" in error


def test_latency_on_this_kernel_if_it_has_no_netem(tmp_path: Path) -> None:
    if qdisc_problem("netem") is None:
        pytest.skip("this kernel has netem")
    assert "CONFIG_NET_SCH_NETEM" in refusal(tmp_path, None, LATENCY)


def test_rates_without_htb(tmp_path: Path) -> None:
    assert "CONFIG_NET_SCH_HTB" in refusal(tmp_path, refusing(tmp_path, "htb"))


def test_bursts_without_any_injector(tmp_path: Path) -> None:
    if bpf_problem() is None:
        pytest.skip("this kernel has the BPF injector, which needs no option that tc could refuse")
    error = refusal(tmp_path, refusing(tmp_path, "netem"))
    assert "engine mininet cannot run: " in error
    assert "CONFIG_NET_SCH_NETEM" in error
    assert "Linux 6.6" in error


def test_two_protocols_on_one_link(tmp_path: Path) -> None:
    error = refusal(
        tmp_path, None, "events:",
        "  - {action: loss, loss: 10%, at: {iteration: 1}, duration: 1 iteration}",
        "  - {action: loss, loss: 10%, at: {iteration: 3}, duration: 1 iteration, protocol: all}",
    )
    assert "events.1.protocol: 'all' on w1 to_server, but events.0 has 'udp' there; give both the same" in error


def test_a_link_that_engine_local_cannot_have(tmp_path: Path) -> None:
    assert "topology.link.latency needs an emulated link" in refusal(tmp_path, None, LATENCY, engine="local")
