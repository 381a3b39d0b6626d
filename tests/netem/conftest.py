"""The tests of this folder need a kernel with netem; `make test-netem` gives them one and makes it a must."""

from __future__ import annotations

import os

import pytest

from testbed.bursts.netem import netem_problem


@pytest.fixture(autouse=True, scope="session")
def _netem() -> None:
    if os.environ.get("NETEM_REQUIRED"):
        return
    problem = "needs root" if os.geteuid() else netem_problem()
    if problem:
        pytest.skip(f"{problem}; `make test-netem` runs this in a guest that has it")
