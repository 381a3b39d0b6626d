"""Imports point one way: between the packages, and within protocol/ from bytes up to server and worker."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "scenarios", "testbed", "analysis")

# What each package may import of the others. Only the command line brings testbed and analysis together.
ALLOWED = {
    "protocol": set(),
    "scenarios": set(),
    "testbed": {"protocol", "scenarios"},
    "analysis": {"protocol", "scenarios"},
}
COMMAND_LINE = "testbed.cli"

# Layers of protocol/, lowest first. A module imports from lower layers; within the lowest, without a cycle.
LAYERS = (
    {"errors", "order", "aggregate", "config", "wire", "tolerance", "pacing"},
    {"sender", "receiver", "inbox", "sockets"},
    {"stats", "endpoint"},
    {"handshake"},
    {"server", "worker"},
    {"__init__"},
)


def modules() -> dict[str, Path]:
    """Every module of ours by dotted name, packages under their `__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports, wherever in it; `from a import b` gives a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the arrows"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below(package: str) -> None:
    for name, path in modules().items():
        if not name.startswith(f"{package}."):
            continue
        foreign = {top for imported in imports(path) if (top := imported.split(".")[0]) in PACKAGES and top != package}
        allowed = ALLOWED[package] | ({"analysis"} if name == COMMAND_LINE else set())
        assert foreign <= allowed, f"{name} imports {sorted(foreign - allowed)}"


def test_protocol_needs_numpy_and_the_standard_library_only() -> None:
    for name, path in modules().items():
        if name.startswith("protocol."):
            tops = {imported.split(".")[0] for imported in imports(path)}
            assert tops <= sys.stdlib_module_names | {"numpy", "protocol"}, f"{name} imports {sorted(tops)}"


def test_importing_protocol_loads_no_torch() -> None:
    code = "import sys, protocol; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_layers_of_protocol() -> None:
    layer = {module: depth for depth, members in enumerate(LAYERS) for module in members}
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        if not name.startswith("protocol."):
            continue
        module = name.removeprefix("protocol.")
        assert module in layer, f"{name} has no layer yet; give it one here"
        inner = {imported.split(".")[1] for imported in imports(path) if imported.startswith("protocol.")}
        graph[module] = {part if part in layer else "__init__" for part in inner}
        for imported in graph[module]:
            below = layer[imported] < layer[module]
            assert below or layer[imported] == layer[module] == 0, f"{name} imports protocol.{imported}"
    assert set(graph) == set(layer)
    tuple(TopologicalSorter(graph).static_order())      # raises CycleError


@pytest.mark.parametrize("package", ["scenarios", "testbed.bursts.gate"])
def test_no_circles_within(package: str) -> None:
    """The package's own `__init__` gathers the modules; none of them asks it for anything."""
    inner = {name for name in modules() if name.startswith(f"{package}.")}
    graph = {name: imports(modules()[name]) & inner for name in inner if not name.endswith("__init__")}
    tuple(TopologicalSorter(graph).static_order())
