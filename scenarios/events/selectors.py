"""Where events act: the forms of `selector`, and what they select of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, WithJsonSchema

from scenarios.errors import unknown
from scenarios.topology import SERVER

LinkDirection = Literal["to_server", "to_worker"]
LinkKey = tuple[str, LinkDirection]
DIRECTIONS: tuple[LinkDirection, ...] = ("to_server", "to_worker")


class Hosts(Protocol):
    """What events ask of a topology."""

    @property
    def worker_names(self) -> Sequence[str]: ...

ROLES = ("workers", "server", "all")


def _selector(value: Any) -> str | tuple[str, ...]:
    if value in ROLES:
        return value
    hosts = list(value) if isinstance(value, list | tuple) else []
    if not hosts or not all(isinstance(host, str) for host in hosts) or len(set(hosts)) < len(hosts):
        raise ValueError(
            f"write 'workers', 'server', 'all', or a list of different hosts such as [w1, w3], not {value!r}"
        )
    return tuple(hosts)


Selector = Annotated[
    Literal["workers", "server", "all"] | tuple[str, ...],
    BeforeValidator(_selector),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(ROLES)},
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": "^(w[1-9][0-9]*|srv)$"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
            ],
        }
    ),
]


def select(selector: str | tuple[str, ...], topology: Hosts) -> tuple[str, ...]:
    """The hosts that a selector names."""
    workers = tuple(topology.worker_names)
    match selector:
        case "workers":
            return workers
        case "server":
            return (SERVER,)
        case "all":
            return (SERVER, *workers)
        case _:
            return selector


def unknown_hosts(selector: str | tuple[str, ...], topology: Hosts) -> list[tuple[int, str]]:
    """(place in the selector's list, message) of each name that the topology has not."""
    names = (*topology.worker_names, SERVER)
    if selector in ROLES:
        return []
    return [(at, unknown("host", host, names)) for at, host in enumerate(selector) if host not in names]
