"""What of the testbed works on this machine, what does not, and the remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from testbed.bursts.bpf import bpf_problem
from testbed.bursts.netem import netem_problem
from testbed.environment import PACKAGES
from testbed.isolation import ISOLATE
from testbed.shaping import qdisc_problem
from testbed.switches import SwitchError, ovs_datapath
from testbed.training.data import locate

MININET = "engine mininet"
# tool -> Debian and Ubuntu package that brings it
TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "mnexec": "mininet",
    "ifconfig": "net-tools",
    "unshare": "util-linux",
}
UDP_SEGMENT, UDP_GRO = 103, 104  # include/uapi/linux/udp.h
INJECTORS = ("injector netem", "injector bpf")


@dataclass(frozen=True)
class Check:
    """One line of the doctor.

    Attributes:
        name: what was looked at.
        ok: True works, False does not, None cannot be told here or is not needed.
        found: what there is.
        remedy: what to do; empty where nothing is to be done.
        needed_for: what does not work without it.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str
    needed_for: str


def checks() -> list[Check]:
    """All checks, in the order in which they help. Leaves nothing behind; those that need root say so."""
    return [*_network_checks(), _ovs_check(), *_socket_checks(), *_package_checks(), _gpu_check(), *_data_checks()]


def mininet_ready() -> tuple[bool, str]:
    """Whether engine `mininet` can run here, and why not (empty when it can)."""
    results = _network_checks()
    wrong = [check for check in results if check.needed_for == MININET and check.ok is False]
    injectors = [check for check in results if check.name in INJECTORS]
    if not wrong and not any(check.ok for check in injectors):
        wrong = injectors
    return not wrong, "; ".join(f"{check.name}: {check.found}: {check.remedy}" for check in wrong)


def render(results: Iterable[Check], console: Console) -> None:
    """Print the checks as a table with what each is needed for, the remedies, and which engine `auto` takes."""
    marks = {True: "[green]ok[/]", False: "[red]no[/]", None: "[yellow]--[/]"}
    table = Table("", "what", "found", "needed for", box=None, header_style="bold", pad_edge=False)
    results = list(results)
    for check in results:
        table.add_row(marks[check.ok], check.name, check.found, check.needed_for)
    console.print(table)
    for check in results:
        if check.remedy:
            console.print(f"{marks[check.ok]} [bold]{check.name}[/]: {check.remedy}", highlight=False)
    ready, reason = mininet_ready()
    console.print(
        "\n[bold]--engine auto[/] takes [bold]mininet[/] here." if ready
        else f"\n[bold]--engine auto[/] takes [bold]local[/] here. Mininet lacks {reason}",
        highlight=False,
    )


# -- the parts ------------------------------------------------------------------------------------------------


def _network_checks() -> list[Check]:
    root = os.geteuid() == 0
    found = [Check("root", root, f"user id {os.geteuid()}", "" if root else "run it with sudo", MININET)]
    for tool, package in TOOLS.items():
        path = shutil.which(tool)
        remedy = "" if path else f"apt install --no-install-recommends {package}"
        found.append(Check(f"tool {tool}", path is not None, path or "not installed", remedy, MININET))
    if not all(check.ok for check in found):
        missing = ", ".join(check.name for check in found if not check.ok)
        remedy = f"see {missing}, then ask again"
        return [*found, Check("kernel features", None, f"cannot be tried without {missing}", remedy, MININET)]
    modules = "load or build the module; most distributions' kernels have it"
    veth = "ip link add name dblp0 type veth peer name dblp1"
    bridge = "ip link add name dblp0 type bridge"
    found += [
        _kernel("namespaces", lambda: _attempt([*ISOLATE, "true"]), "containers: start with --privileged", MININET),
        _kernel("veth (CONFIG_VETH)", lambda: _attempt(["unshare", "-n", *veth.split()]), modules, MININET),
        _kernel("bridge (CONFIG_BRIDGE)", lambda: _attempt(["unshare", "-n", *bridge.split()]), modules, MININET),
        _kernel("HTB (CONFIG_NET_SCH_HTB)", lambda: qdisc_problem("htb"), modules, MININET),
        _kernel(
            "netem (CONFIG_NET_SCH_NETEM)",
            lambda: qdisc_problem("netem"),
            "modprobe sch_netem (Ubuntu: apt install linux-modules-extra-$(uname -r)), or do without delays",
            "latency and jitter of links",
        ),
    ]
    problems = dict(zip(INJECTORS, (netem_problem(), bpf_problem()), strict=True))
    one_works = None in problems.values()
    for name, problem in problems.items():
        ok = True if problem is None else None if one_works else False
        remedy = "" if one_works else "one of the two injectors is needed"
        found.append(Check(name, ok, problem or "works", remedy, "bursts in engine mininet (one of the two)"))
    return found


def _kernel(name: str, problem_of: Callable[[], str | None], remedy: str, needed_for: str) -> Check:
    problem = problem_of()
    return Check(name, problem is None, problem or "works", remedy if problem else "", needed_for)


def _ovs_check() -> Check:
    if os.geteuid():
        return Check("Open vSwitch", None, "cannot be tried without root", "", "`switch: ovs` only")
    try:
        datapath = ovs_datapath()
    except SwitchError as problem:
        return Check("Open vSwitch", None, str(problem), "", "`switch: ovs` only")
    works = {
        "system": "works, in the kernel",
        "netdev": "works in user space, without losses on the way to the server (kernel option CONFIG_OPENVSWITCH)",
    }
    return Check("Open vSwitch", True, works[datapath], "", "`switch: ovs` only")


def _attempt(command: list[str]) -> str | None:
    result = subprocess.run(command, capture_output=True, text=True)
    return None if result.returncode == 0 else " ".join(result.stderr.split()) or f"exit {result.returncode}"


def _socket_checks() -> list[Check]:
    found = []
    for name, option, value in (("UDP_SEGMENT", UDP_SEGMENT, 1472), ("UDP_GRO", UDP_GRO, 1)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.setsockopt(socket.IPPROTO_UDP, option, value)
                problem = None
            except OSError as error:
                problem = f"{error.strerror} (Linux {platform.release()})"
        remedy = "a kernel from 5.0 on; until then each datagram costs a system call" if problem else ""
        found.append(Check(name, problem is None, problem or "works", remedy, "the transport's speed"))
    return found


def _package_checks() -> list[Check]:
    found = []
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(Check(f"package {name}", False, "not installed", "make setup", "everything"))
        else:
            found.append(Check(f"package {name}", True, version, "", "everything"))
    return found


def _gpu_check() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("GPU", None, f"torch does not load: {error}", "make setup", "profile `paper` in hours")
    if torch.cuda.is_available():
        return Check("GPU", True, torch.cuda.get_device_name(), "", "profile `paper` in hours")
    return Check("GPU", None, "none that torch can use", "", "profile `paper` in hours, not days")


def _data_checks() -> list[Check]:
    downloaded = "downloaded when first needed; offline, {} stands in and results say so"
    # data set -> what to do where it is missing, and what needs it
    wanted = {
        "cifar10": (downloaded.format("Fashion-MNIST"), "training EfficientNetB0, DenseNet169, ResNet-20"),
        "cifar100": (downloaded.format("Fashion-MNIST"), "training ResNet50, AlexNet"),
        "fashion_mnist": (
            "apt install dataset-fashion-mnist, or downloaded when first needed",
            "training image models where CIFAR cannot be downloaded",
        ),
        "wikitext2": (downloaded.format("a Bible"), "training GPT-2"),
        "bible": ("apt install bible-kjv", "training GPT-2 where WikiText-2 cannot be downloaded; the small GPT"),
    }
    found = []
    for name, (remedy, needed_for) in wanted.items():
        place = locate(name)
        found.append(Check(
            f"data {name}", None if place is None else True, str(place) if place else "not here yet",
            "" if place else remedy, needed_for,
        ))
    return found
