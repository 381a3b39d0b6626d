"""A node's side of the gate."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

from testbed.bursts.gate.common import GateError, check_path


class GateClient:
    """A node's side. `send_barrier`, then poll (or select on `fileno()`) while draining one's own sockets.

    Args:
        path: the gate's socket.
        node: this node's name, 'srv' or 'w1'.

    Raises:
        GateError: nobody listens there.
    """

    def __init__(self, path: str | Path, node: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(check_path(path))
        except OSError as error:
            self._socket.close()
            raise GateError(f"gate socket {path}: {error.strerror}; is the engine running?") from error
        self._buffer = b""
        self._send({"hello": node})

    def fileno(self) -> int:
        """Readable when `poll_go` has something to say."""
        return self._socket.fileno()

    def send_barrier(self, iteration: int) -> None:
        """This node is idle and waits to begin `iteration`. Raises GateError if the gate is gone."""
        self._send({"barrier": iteration})

    def poll_go(self) -> dict[str, Any] | None:
        """The gate's answer if it has come, else None; never blocks.

        Returns:
            `{"go": iteration}`, or `{"abort": reason}` when the run is over.

        Raises:
            GateError: the gate is gone.
        """
        if b"\n" not in self._buffer:
            self._receive()
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return json.loads(line)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise GateError("the engine closed the gate") from error
        if not data:
            raise GateError("the engine closed the gate")
        self._buffer += data

    def report(self, **fields: Any) -> None:
        """Tell the engine something, with no answer. Raises GateError if the gate is gone."""
        self._send({"report": fields})

    def close(self) -> None:
        """Leave in order; the gate does not count it as a lost node. May be called twice."""
        with contextlib.suppress(GateError):
            self._send({"bye": True})
        self._socket.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise GateError("the engine closed the gate") from error
