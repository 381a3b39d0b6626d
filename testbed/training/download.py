"""Where data sets are kept, and how a download ends when there is no network."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

from testbed.errors import UserError

TIMEOUT_S = 5.0  # to connect, and for each read: an unreachable host must not hold up a run


class DataError(UserError):
    """A data set is not there; the message names it and the remedy, `reason` says why it could not be had."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def default_root() -> Path:
    """The folder of downloaded data: $DBLP_DATA, else `data/` beside the code."""
    return Path(os.environ.get("DBLP_DATA") or Path(__file__).resolve().parents[2] / "data")


def download(title: str, url: str, root: Path, fetch: Callable[[], object]) -> None:
    """Run `fetch`, which checks the checksum of what it gets, once the host of `url` answers.

    Raises:
        DataError: no host, a timeout, or a wrong checksum (RuntimeError of `fetch`).
    """
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)  # torchvision passes none of its own
    try:
        urlopen(Request(url, method="HEAD")).close()
        fetch()
    except (OSError, RuntimeError) as error:
        cause = getattr(error, "reason", error)
        reason = f"{url}: {getattr(cause, 'strerror', None) or str(cause).splitlines()[0]}"
        raise DataError(
            f"{title} is not in {root} and cannot be downloaded ({reason}); "
            "put it there, or name the folder that holds it in DBLP_DATA",
            reason,
        ) from error
    finally:
        socket.setdefaulttimeout(previous)
