"""The engine's side of the gate: who has arrived, who goes on, who is lost."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scenarios import Scenario
from testbed.bursts.director import Director
from testbed.bursts.gate.common import GateError, check_path
from testbed.bursts.gate.flips import Flips
from testbed.topology import host_names

MAX_LINE_BYTES = 1 << 20


class Gate:
    """The engine's side: a thread that owns the socket, the flips and `events.jsonl`. A context manager.

    Args:
        path: where the socket is made (relative to the working directory, if that keeps it below 108 bytes).
        scenario: its timeline says when to flip what.
        director: switches the events.
        log: the `events.jsonl` to write.
        queues: returns the queues' counters (:func:`testbed.shaping.queue_drops`), logged with each flip.
        on_report: called in the gate's thread with (node, fields) of each report.
        on_flip: called in the gate's thread with each line of the log about a burst.
        on_disconnect: called in the gate's thread with the name of a node that left without a bye.
        started: time.monotonic() of the start of the run, the zero of `time_s`.
    """

    def __init__(
        self,
        path: str | Path,
        scenario: Scenario,
        director: Director,
        log: str | Path,
        *,
        queues: Callable[[], list[dict[str, Any]]] = list,
        on_report: Callable[[str, dict[str, Any]], None] = lambda node, fields: None,
        on_flip: Callable[[dict[str, Any]], None] = lambda entry: None,
        on_disconnect: Callable[[str], None] = lambda node: None,
        started: float | None = None,
    ) -> None:
        self._path = check_path(path)
        self._nodes = host_names(scenario.topology.workers)
        self._on_report = on_report
        self._on_disconnect = on_disconnect
        started = time.monotonic() if started is None else started
        self._flips = Flips(scenario, director, log, queues, on_flip, started)
        self._waiting: dict[str, int] = {}
        self._connections: dict[str, _Connection] = {}
        self._aborted: str | None = None
        self.error: Exception | None = None
        """What stopped the gate's thread, if anything did; leaving the context raises it."""

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Listen and write the `start` line. Raises GateError if the socket cannot be made."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # a killed run's
            self._listener.bind(self._path)
        except OSError as error:
            self._listener.close()
            raise GateError(f"gate socket {self._path}: {error.strerror}") from error
        self._listener.listen()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._wake_receiver):
            self._selector.register(source, selectors.EVENT_READ)
        self._flips.begin()
        self._thread = threading.Thread(target=self._serve, name="gate", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self.error is not None and kind is None:
            raise self.error

    def abort(self, reason: str) -> None:
        """Send {"abort": reason} to all nodes, now and to whoever comes later; from any thread."""
        self._wake(reason)

    def _wake(self, message: str) -> None:
        self._wake_sender.sendall(message.replace("\n", " ").encode() + b"\n")

    def _stop(self) -> None:
        self._wake("")
        self._thread.join()
        try:
            self._flips.end()
        except Exception as error:
            self.error = self.error or error
        for connection in list(self._connections.values()):
            connection.socket.close()
        for resource in (self._listener, self._wake_receiver, self._wake_sender, self._selector):
            resource.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    # -- the thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        stopping = False
        try:
            while True:
                due = None if stopping else self._flips.next_due()
                timeout = 0 if stopping else None if due is None else max(0.0, due - time.monotonic())
                ready = self._selector.select(timeout)
                if stopping and not ready:      # all that the nodes have said before has been heard
                    return
                self._flips.by_the_clock()
                for key, _ in ready:
                    if key.fileobj is self._wake_receiver:
                        for reason in self._wake_receiver.recv(4096).decode().splitlines():
                            if reason:
                                self._abort(reason)
                            else:
                                stopping = True
                    elif key.fileobj is self._listener:
                        accepted, _ = self._listener.accept()
                        self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))
                    else:
                        self._read(key.data)
        except Exception as error:
            self.error = error
            self._abort(f"the gate failed: {error}")

    def _read(self, connection: _Connection) -> None:
        try:
            messages = connection.receive()
        except (OSError, ValueError, GateError) as error:
            self._drop(connection, str(error))
            return
        for message in messages:
            try:
                self._handle(connection, message)
            except GateError as error:
                self._drop(connection, str(error))
                return

    def _handle(self, connection: _Connection, message: Any) -> None:
        node = connection.node
        if not isinstance(message, dict):
            raise GateError(f"unknown message {message}")
        if "hello" in message:
            name = message["hello"]
            if name not in self._nodes or name in self._connections:
                raise GateError(f"unexpected hello of {name!r}")
            connection.node = name
            self._connections[name] = connection
        elif node is None:
            raise GateError("a message before hello")
        elif isinstance(message.get("barrier"), int):
            self._arrive(node, message["barrier"])
        elif "report" in message:
            report = message["report"]
            if isinstance(report, dict) and isinstance(report.get("iteration"), int):
                self._flips.done(node, report["iteration"])
            self._on_report(node, report)
        elif "bye" in message:
            connection.left = True
            self._pass_if_complete()
        else:
            raise GateError(f"unknown message {message}")

    def _drop(self, connection: _Connection, reason: str) -> None:
        self._selector.unregister(connection.socket)
        node = connection.node
        if node is None or self._connections.get(node) is not connection:
            connection.send({"abort": reason})
        connection.socket.close()
        if node is None or connection.left:
            return
        self._waiting.pop(node, None)
        self._on_disconnect(node)
        self._abort(f"{node} disconnected")

    def _arrive(self, node: str, iteration: int) -> None:
        if self._aborted is not None:
            self._connections[node].send({"abort": self._aborted})
            return
        self._waiting[node] = iteration
        others = {other: at for other, at in self._waiting.items() if at != iteration}
        if others:
            other, at = next(iter(others.items()))
            self._abort(f"{node} is at iteration {iteration}, {other} at {at}")
            return
        self._pass_if_complete()

    def _pass_if_complete(self) -> None:
        if not self._waiting:
            return
        node, iteration = next(iter(self._waiting.items()))
        gone = [name for name, connection in self._connections.items() if connection.left]
        if gone:
            self._abort(f"{node} waits at iteration {iteration}, but {gone[0]} has ended its run")
        elif len(self._waiting) == len(self._nodes):
            self._flips.at(iteration)
            self._waiting.clear()
            for connection in self._connections.values():
                connection.send({"go": iteration})

    def _abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason
        self._flips.halt()
        self._waiting.clear()
        for connection in self._connections.values():
            connection.send({"abort": self._aborted})


class _Connection:
    """One node's end: splits its stream into lines."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.node: str | None = None
        self.left = False
        self._buffer = b""

    def receive(self) -> list[Any]:
        """The messages that have come. Raises GateError at the end of the stream, ValueError for no JSON."""
        data = self.socket.recv(65536)
        if not data:
            raise GateError("connection closed")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES:
            raise GateError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [json.loads(line) for line in lines]

    def send(self, message: dict[str, Any]) -> None:
        # A node that died is noticed by its closed stream, not here.
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")
