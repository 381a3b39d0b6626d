"""What run.json says of the machine, the versions and the source tree."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from testbed import environment


def test_the_machine_is_described():
    machine = environment.machine()
    assert machine["cpu"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory_gib"] > 0
    assert machine["kernel"] == platform.release()
    assert '"' not in machine["os"]


def test_a_machine_without_proc_and_os_release_is_described_too(monkeypatch):
    monkeypatch.setattr(environment, "_lines", lambda path: [])
    machine = environment.machine()
    assert machine["cpu"] == (platform.processor() or platform.machine())
    assert machine["os"] == platform.system()


def test_missing_packages_are_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package"))
    versions = environment.versions()
    assert versions["python"] == platform.python_version()
    assert versions["numpy"][0].isdigit()
    assert versions["no-such-package"] == "not installed"


def test_a_checkout_has_its_commit_and_says_whether_it_was_changed(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    module = tmp_path / "testbed" / "environment.py"
    module.parent.mkdir()
    module.write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(environment, "__file__", str(module))
    commit = git("rev-parse", "HEAD")
    assert environment.git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text("{}\n")
    assert environment.git_state() == {"commit": commit, "dirty": False}, "results are no change of the source"
    module.write_text("2\n")
    assert environment.git_state() == {"commit": commit, "dirty": True}


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_checkout_or_git_the_commit_is_unknown(tmp_path: Path, monkeypatch, installed: bool):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "testbed" / "environment.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    if not installed:
        monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state() is None
