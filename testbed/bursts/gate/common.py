"""What both sides of the gate share."""

from __future__ import annotations

import os
from pathlib import Path

SUN_PATH_BYTES = 108  # sockaddr_un of unix(7), with its closing zero


class GateError(RuntimeError):
    """The run cannot go on past the gate; the text names the node or the cause."""


def check_path(path: str | Path) -> str:
    if len(os.fsencode(path)) >= SUN_PATH_BYTES:
        raise GateError(
            f"gate socket {path}: longer than the {SUN_PATH_BYTES - 1} bytes of a Unix socket's path; "
            "give a path relative to the working directory"
        )
    return os.fspath(path)
