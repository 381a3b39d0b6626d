"""`make setup` on made-up machines: every command that would change the machine is a stand-in that notes its call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.doctor import TOOLS

SCRIPT = Path(__file__).resolve().parent.parent / "testbed" / "install.sh"

# Notes its arguments; `-m venv DIR` makes a DIR/bin/pip that does, too. Python code is run by the real one, as an
# older release where OLD is set.
PYTHON = """#!/bin/sh
echo "python $*" >> "$CALLS"
case "$1" in
  -m) /bin/mkdir -p "$3/bin"; printf '#!/bin/sh\\necho "pip $*" >> "$CALLS"\\n' > "$3/bin/pip"
      /bin/chmod +x "$3/bin/pip" ;;
  -) exec REAL -c "import os, sys
if os.environ.get('OLD'): sys.version_info, sys.version = (3, 10, 2), '3.10.2 (main)'
exec(sys.stdin.read())" ;;
  *) exec REAL "$@" ;;
esac
"""


@dataclass
class Machine:
    """A folder of commands, and what was called."""

    bin: Path
    environment: dict[str, str]

    def command(self, name: str, body: str = "") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$CALLS"\n{body}\n')
        path.chmod(0o755)

    def setup(self) -> subprocess.CompletedProcess[str]:
        # As the script does itself, but without the real tools of /usr/sbin.
        text = SCRIPT.read_text()
        assert text.count("export PATH=$PATH:/usr/sbin:/sbin\n") == 1
        text = text.replace("export PATH=$PATH:/usr/sbin:/sbin\n", "")
        command = [shutil.which("bash"), "-c", text, "install.sh", str(self.bin.parent / "venv")]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    @property
    def calls(self) -> list[str]:
        return Path(self.environment["CALLS"]).read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A user's machine with all tools, without apt."""
    made = Machine(tmp_path / "bin", {"PATH": str(tmp_path / "bin"), "CALLS": str(tmp_path / "calls")})
    made.bin.mkdir()
    for tool in TOOLS:
        made.command(tool)
    made.command("id", "echo 1000")
    (made.bin / "python3").write_text(PYTHON.replace("REAL", sys.executable))
    (made.bin / "python3").chmod(0o755)
    return made


@pytest.fixture
def debian(machine: Machine) -> Machine:
    """Root on Debian, where two tools are missing."""
    machine.command("id", "echo 0")
    machine.command("apt-get")
    machine.command("dpkg", "exit 1")
    for tool in ("mnexec", "ip", "tc"):
        (machine.bin / tool).unlink()
    return machine


def test_the_script_is_bash():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


def test_script_and_doctor_know_the_same_tools(machine):
    for tool in TOOLS:
        (machine.bin / tool).unlink()
    done = machine.setup()
    named = done.stdout.split("missing: ")[1].split(" (as root")[0].split()
    assert sorted(named) == sorted(set(TOOLS.values()))


def test_with_all_tools_only_the_environment_is_made(machine):
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert "missing" not in done.stdout
    venv = machine.bin.parent / "venv"
    assert f"python -m venv {venv}" in machine.calls
    assert machine.calls[-1] == "pip install --quiet --disable-pip-version-check --editable .[dev]"


def test_a_user_is_told_what_root_should_install_and_goes_on(machine):
    (machine.bin / "mnexec").unlink()
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert "setup: missing: mininet (as root: apt-get install --no-install-recommends mininet)" in done.stdout
    assert "only the engine 'local' works" in done.stdout
    assert machine.calls[-1].startswith("pip install")


def test_root_gets_the_tools_from_apt(debian):
    done = debian.setup()
    assert done.returncode == 0, done.stderr
    apt = [call for call in debian.calls if call.startswith("apt-get")]
    assert apt[0] == "apt-get update -qq"
    assert apt[1].startswith("apt-get install -y -qq --no-install-recommends ")
    assert sorted(apt[1].split()[5:]) == ["iproute2", "mininet"]
    assert [call.split()[-1] for call in apt[2:]] == ["dataset-fashion-mnist", "bible-kjv"]


def test_root_with_everything_leaves_apt_alone(debian):
    debian.command("dpkg")
    for tool in ("mnexec", "ip", "tc"):
        debian.command(tool)
    assert debian.setup().returncode == 0
    assert not [call for call in debian.calls if call.startswith("apt-get")]


def test_a_data_set_that_the_release_lacks_is_no_reason_to_stop(debian):
    debian.command("apt-get", 'case "$*" in *dataset*) exit 100 ;; esac')
    done = debian.setup()
    assert done.returncode == 0, done.stderr
    assert "dataset-fashion-mnist is not to be had here" in done.stdout
    assert any(call.endswith(" bible-kjv") for call in debian.calls)
    assert debian.calls[-1].startswith("pip install")


def test_package_lists_that_cannot_be_renewed_are_no_reason_to_stop(debian):
    debian.command("apt-get", 'case "$*" in update*) exit 100 ;; esac')
    assert debian.setup().returncode == 0
    assert debian.calls[-1].startswith("pip install")


def test_a_tool_that_cannot_be_installed_is(debian):
    debian.command("apt-get", 'case "$*" in *mininet*) echo "E: no mininet" >&2; exit 100 ;; esac')
    done = debian.setup()
    assert done.returncode == 100
    assert "E: no mininet" in done.stderr
    assert not any(call.startswith("pip") for call in debian.calls)


def test_an_old_python_is_refused_with_the_way_out(machine):
    machine.environment["OLD"] = "1"
    done = machine.setup()
    assert done.returncode == 1
    assert "Python 3.10.2 is too old; 3.11 or newer is needed. Try: make setup PYTHON=" in done.stderr
    assert not any(" venv " in call for call in machine.calls)
