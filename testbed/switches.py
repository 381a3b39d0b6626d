"""The switches: the kernel's bridge, or Open vSwitch where it works.

Both take `table` (hardware address -> port) and `silent` (ports that pass no broadcasts on) from the topology and
then forward along fixed paths: no spanning tree, no learning, so a port forwards at once and a network with loops
neither waits for a protocol nor leaves links unused. Without a table they learn, as usual.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from mininet.node import Switch

from testbed import iproute
from testbed.errors import UserError
from testbed.isolation import ISOLATE

START_TIMEOUT = 10.0  # s for Open vSwitch's two daemons
OVS_SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
OVS_TOOLS = ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl")


class SwitchError(UserError):
    """A switch does not work here; the text says what is missing and what to do."""


class ScenarioSwitch(Switch):
    """A switch with a forwarding table.

    Args:
        table: port for each hardware address; empty: the switch learns.
        silent: ports, of any switch, that pass no broadcasts on.
    """

    def __init__(self, name: str, table: dict[str, str] | None = None, silent: set[str] = frozenset(), **params: Any):
        self.table, self.silent = table or {}, silent
        super().__init__(name, **params)

    def port_names(self) -> list[str]:
        """Names of the interfaces to forward between."""
        return [interface for interface in self.intfNames() if interface != "lo"]


class LinuxBridge(ScenarioSwitch):
    """The kernel's bridge by iproute2 alone: no `brctl`, no daemon.

    Multicast snooping is off, so the bridge sends no queries of its own that would count as traffic of the experiment.
    """

    def start(self, controllers: list[object]) -> None:
        link = ["ip", "link"]
        plan = [[*link, "add", "name", self.name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0"]]
        for port in self.port_names():
            plan.append([*link, "set", "dev", port, "master", self.name, "up"])
            off = ["learning"] if self.table else []
            off += ["flood", "mcast_flood", "bcast_flood"] if port in self.silent else []
            if off:
                settings = [word for option in off for word in (option, "off")]
                plan.append([*link, "set", "dev", port, "type", "bridge_slave", *settings])
        for mac, port in self.table.items():
            plan.append(["bridge", "fdb", "replace", mac, "dev", port, "master", "static"])
        try:
            iproute.run(plan, self)
            iproute.run([[*link, "set", "dev", self.name, "up"]], self)
        except iproute.CommandError as error:
            needs = "the kernel needs CONFIG_BRIDGE and CONFIG_VETH (run `dblp doctor`)"
            raise SwitchError(f"switch {self.name}: {error}; {needs}") from None

    def stop(self, deleteIntfs: bool = True) -> None:
        # A bridge that start() never made is no error here: stop() also clears up after a failed start.
        self.pexec("ip", "link", "del", "dev", self.name)
        super().stop(deleteIntfs)


class OpenVSwitch(ScenarioSwitch):
    """Open vSwitch with daemons of its own.

    A daemon that the machine runs already does not see the interfaces of our network namespace, and is none of our
    business. The kernel's datapath (CONFIG_OPENVSWITCH) is used where it works, else the one in user space.
    """

    def start(self, controllers: list[object]) -> None:
        daemons = _Daemons.running()
        mode = "secure" if self.table else "standalone"
        daemons.vsctl(
            "add-br", self.name, "--", "set", "bridge", self.name, f"datapath_type={daemons.datapath}",
            f"fail_mode={mode}", f"other-config:datapath-id={self.dpid}",
        )  # fmt: skip
        for port in self.port_names():
            daemons.vsctl("add-port", self.name, port)
            if port in self.silent:
                daemons.ofctl("mod-port", self.name, port, "no-flood")
        flows = [f"priority=2,dl_dst={mac},actions=output:{port}" for mac, port in self.table.items()]
        if flows:
            daemons.ofctl("add-flows", self.name, "-", text="\n".join([*flows, "priority=1,actions=flood"]))
        if daemons.datapath == "netdev":
            self._complete_checksums()
        self.pexec("ip", "link", "set", "dev", self.name, "up")

    def _complete_checksums(self) -> None:
        # Frames leave for user space with a checksum that the NIC would complete, and there is no NIC.
        for port in self.port_names():
            link = self.intf(port).link
            peer = link.intf2 if link.intf1 is self.intf(port) else link.intf1
            _, error, status = peer.node.pexec("ethtool", "-K", peer.name, "tx", "off")
            if status != 0:
                raise SwitchError(f"switch {self.name}: `ethtool -K {peer.name} tx off` failed: {error.strip()}")

    def stop(self, deleteIntfs: bool = True) -> None:
        if _Daemons.current:
            _Daemons.current.vsctl("--if-exists", "del-br", self.name)
        super().stop(deleteIntfs)


class _Daemons:
    """ovsdb-server and ovs-vswitchd of this process, in a temporary folder; ended with it.

    Attributes:
        datapath: 'system' (the kernel's) or 'netdev' (user space).

    Raises:
        SwitchError: they do not start, or neither datapath works.
    """

    current: ClassVar[_Daemons | None] = None

    @classmethod
    def running(cls) -> _Daemons:
        if cls.current is None:
            cls.current = cls()
        return cls.current

    def __init__(self) -> None:
        missing = [tool for tool in OVS_TOOLS if shutil.which(tool) is None]
        if missing or not OVS_SCHEMA.exists():
            raise SwitchError(
                f"Open vSwitch: {missing[0] if missing else OVS_SCHEMA} is not installed "
                "(apt install --no-install-recommends openvswitch-switch)"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="dblp-ovs-")
        self._place = Path(self._folder.name)
        self._environment = {
            **os.environ, **dict.fromkeys(("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"), str(self._place))
        }  # fmt: skip
        self._processes: list[subprocess.Popen] = []
        atexit.register(self._end)
        database = str(self._place / "conf.db")
        self._run("ovsdb-tool", "create", database, str(OVS_SCHEMA))
        self._start("ovsdb-server", database, f"--remote=punix:{self._place}/db.sock")
        self.vsctl("--no-wait", "init")
        self._start("ovs-vswitchd", f"unix:{self._place}/db.sock")
        self.datapath = self._choose()

    def _choose(self) -> str:
        problems = []
        for datapath in ("system", "netdev"):
            problem = self.vsctl("add-br", "probe", "--", "set", "bridge", "probe", f"datapath_type={datapath}")
            self.vsctl("del-br", "probe")
            if not problem:
                return datapath
            problems.append(f"{datapath}: {problem}")
        raise SwitchError("Open vSwitch: no datapath works: " + "; ".join(problems))

    def _start(self, tool: str, *arguments: str) -> None:
        command = [tool, *arguments, f"--unixctl={self._place}/{tool}.ctl"]
        with (self._place / f"{tool}.log").open("w") as log:
            self._processes.append(
                subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        control = self._place / f"{tool}.ctl"
        deadline = time.monotonic() + START_TIMEOUT
        while not control.exists():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                log = " ".join((self._place / f"{tool}.log").read_text().split())
                raise SwitchError(f"Open vSwitch: {tool} does not start: {log or 'it says nothing'}")
            time.sleep(0.01)

    def _run(self, *command: str, text: str | None = None) -> str:
        result = subprocess.run(command, env=self._environment, input=text, capture_output=True, text=True)
        said = " ".join(result.stderr.split())
        if result.returncode != 0:
            raise SwitchError(f"Open vSwitch: `{' '.join(command)}` failed: {said}")
        return said

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl; what it says on stderr, which is where a bridge that does not come up is reported.

        Raises:
            SwitchError: it fails.
        """
        return self._run("ovs-vsctl", f"--db=unix:{self._place}/db.sock", f"--timeout={START_TIMEOUT:g}", *arguments)

    def ofctl(self, command: str, bridge: str, *arguments: str, text: str | None = None) -> None:
        """Run ovs-ofctl on a bridge.

        Raises:
            SwitchError: it fails.
        """
        self._run("ovs-ofctl", command, f"{self._place}/{bridge}.mgmt", *arguments, text=text)

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._folder.cleanup()


@cache
def ovs_datapath() -> str:
    """The datapath that :class:`OpenVSwitch` would use here: 'system' or 'netdev'. Tries it in namespaces of its own.

    Raises:
        SwitchError: Open vSwitch does not work here.
    """
    attempt = subprocess.run([*ISOLATE, sys.executable, "-m", __name__], capture_output=True, text=True)
    try:
        answer = json.loads(attempt.stdout)
    except ValueError:
        raise SwitchError(f"Open vSwitch: {' '.join(attempt.stderr.split()) or 'no answer'}") from None
    if "problem" in answer:
        raise SwitchError(answer["problem"])
    return answer["datapath"]


def switch_class(kind: str) -> type[ScenarioSwitch]:
    """The switch for the scenario's `topology.switch`: 'auto' and 'bridge' give :class:`LinuxBridge`."""
    return OpenVSwitch if kind == "ovs" else LinuxBridge


if __name__ == "__main__":
    try:
        print(json.dumps({"datapath": _Daemons().datapath}))
    except SwitchError as problem:
        print(json.dumps({"problem": str(problem)}))
