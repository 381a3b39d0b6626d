"""The doctor's verdicts, on made-up machines and on this one."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from testbed import doctor
from testbed.switches import SwitchError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """A machine where all works, whose problems a test may add."""
    problems: dict[str, str | None] = dict.fromkeys(("namespaces", "htb", "netem", "bpf"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(doctor, "_attempt", lambda command: problems["namespaces"])
    monkeypatch.setattr(doctor, "qdisc_problem", lambda kind: problems[kind])
    monkeypatch.setattr(doctor, "netem_problem", lambda: problems["netem"])
    monkeypatch.setattr(doctor, "bpf_problem", lambda: problems["bpf"])
    monkeypatch.setattr(doctor, "ovs_datapath", lambda: "system")
    return problems


def by_name() -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks()}


def test_a_machine_with_everything_is_ready(machine):
    assert doctor.mininet_ready() == (True, "")
    assert by_name()["netem (CONFIG_NET_SCH_NETEM)"].ok


def test_one_injector_is_enough(machine):
    machine["netem"] = "unknown qdisc (kernel option CONFIG_NET_SCH_NETEM)"
    assert doctor.mininet_ready() == (True, "")
    checks = by_name()
    assert checks["netem (CONFIG_NET_SCH_NETEM)"].ok is False
    assert checks["injector netem"].ok is None
    assert checks["injector bpf"].ok is True


def test_no_injector_is_not(machine):
    machine["netem"], machine["bpf"] = "no CONFIG_NET_SCH_NETEM", "needs Linux 6.6"
    ready, reason = doctor.mininet_ready()
    assert not ready
    assert "no CONFIG_NET_SCH_NETEM" in reason
    assert "needs Linux 6.6" in reason


def test_a_container_without_rights_is_not(machine):
    machine["namespaces"] = "Operation not permitted"
    ready, reason = doctor.mininet_ready()
    assert not ready
    assert "namespaces: Operation not permitted: containers: start with --privileged" in reason


def test_a_user_is_sent_to_sudo_and_nothing_else_is_tried(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "qdisc_problem", lambda kind: pytest.fail("tried without root"))
    ready, reason = doctor.mininet_ready()
    assert not ready
    assert reason.startswith("root: user id 1000: run it with sudo")


def test_a_missing_tool_comes_with_its_package(machine, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: None if tool == "mnexec" else f"/usr/bin/{tool}")
    ready, reason = doctor.mininet_ready()
    assert not ready
    assert "tool mnexec: not installed: apt install --no-install-recommends mininet" in reason


def test_every_failure_on_this_machine_has_a_remedy():
    for check in doctor.checks():
        assert check.found, check
        assert check.needed_for, check
        assert check.remedy or check.ok is not False, check


def test_the_table_says_which_engine_is_taken(machine):
    machine["htb"] = "no CONFIG_NET_SCH_HTB"
    output = io.StringIO()
    doctor.render(doctor.checks(), Console(file=output, width=200))
    text = output.getvalue()
    assert "takes local here" in text
    assert "no CONFIG_NET_SCH_HTB" in text


def test_open_vswitch_is_an_extra_and_what_it_cannot_do_in_user_space_is_said(machine, monkeypatch):
    assert by_name()["Open vSwitch"].found == "works, in the kernel"
    monkeypatch.setattr(doctor, "ovs_datapath", lambda: "netdev")
    assert "in user space, without losses on the way to the server" in by_name()["Open vSwitch"].found

    def absent() -> str:
        raise SwitchError("Open vSwitch: ovs-vswitchd is not installed")

    monkeypatch.setattr(doctor, "ovs_datapath", absent)
    assert by_name()["Open vSwitch"].ok is None
    assert doctor.mininet_ready() == (True, "")
