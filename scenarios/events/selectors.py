"""Where events act: the forms of `selector`, and what they select of a topology.

Links of hosts have the names of the hosts, links between switches those of both ends: `leaf1-spine1`, `dc1-dc2`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from scenarios.errors import unknown
from scenarios.topology import SERVER, Topology

LinkDirection = Literal["to_server", "to_worker"]
LinkKey = tuple[str, LinkDirection]
DIRECTIONS: tuple[LinkDirection, ...] = ("to_server", "to_worker")

HOST_ROLES = ("workers", "server", "all")
LINK_ROLES = (*HOST_ROLES, "trunks")
_HOST = "w[1-9][0-9]*|srv"
_TRUNK = "leaf[1-9][0-9]*-spine[1-9][0-9]*|dc1-dc2"


def _check(value: Any, roles: tuple[str, ...]) -> str | tuple[str, ...]:
    if value in roles:
        return value
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        words = ", ".join(map(repr, roles))
        kind = "hosts such as [w1, w3]" if roles == HOST_ROLES else "names such as [w1, w3] or [leaf1-spine1]"
        raise ValueError(f"write {words}, or a list of different {kind}, not {value!r}")
    return tuple(names)


def _schema(roles: tuple[str, ...], pattern: str, *examples: list[str]) -> WithJsonSchema:
    names = {
        "type": "array", "items": {"type": "string", "pattern": f"^({pattern})$"}, "minItems": 1, "uniqueItems": True,
        "examples": list(examples),
    }
    return WithJsonSchema({"anyOf": [{"enum": list(roles)}, names]})


HostSelector = Annotated[
    Literal["workers", "server", "all"] | tuple[str, ...],
    BeforeValidator(lambda value: _check(value, HOST_ROLES)),
    _schema(HOST_ROLES, _HOST, ["w1", "w3"]),
]
"""Hosts: a role, or names."""
LinkSelector = Annotated[
    Literal["workers", "server", "all", "trunks"] | tuple[str, ...],
    BeforeValidator(lambda value: _check(value, LINK_ROLES)),
    _schema(LINK_ROLES, f"{_HOST}|{_TRUNK}", ["w1", "w3"], ["leaf1-spine1"]),
]
"""Links: those of the hosts of a role, `trunks` (all between switches that gradients cross), or names."""


def select(selector: str | tuple[str, ...], topology: Topology) -> tuple[str, ...]:
    """The hosts or links that a selector names."""
    workers = topology.worker_names
    match selector:
        case "workers":
            return workers
        case "server":
            return (SERVER,)
        case "all":
            return (SERVER, *workers)
        case "trunks":
            return tuple(cable.name for cable in topology.trunks() if topology.crossing(cable))
        case _:
            return selector


def misnamed(
    selector: str | tuple[str, ...], topology: Topology, hosts_only: str | None
) -> list[tuple[tuple[int, ...], str]]:
    """(path within the selector, message) of each name that the topology has not, or that makes no sense.

    `hosts_only` says why a link between switches cannot be selected, if that is so.
    """
    trunks = {cable.name: cable for cable in topology.trunks()}
    if isinstance(selector, str):
        return [((), "a star has no links between switches")] if selector == "trunks" and not trunks else []
    hosts = (*topology.worker_names, SERVER)
    names = hosts if hosts_only else (*hosts, *trunks)
    problems = []
    for at, name in enumerate(selector):
        if name not in names:
            message = f"{name!r} joins two switches; {hosts_only}" if name in trunks else unknown(
                "host" if hosts_only or not trunks else "host or link", name, names
            )
            problems.append(((at,), message))
        elif name in trunks and not topology.crossing(trunks[name]):
            used = ", ".join(select("trunks", topology))
            problems.append(((at,), f"no gradient crosses {name!r}, so nothing would happen; they cross {used}"))
    return problems
