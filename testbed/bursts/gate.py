"""The gate: bursts begin and end between two iterations, while nothing is on the wire.

Before each iteration at which a burst starts or stops, every node (server and workers) reports at the gate once its
senders are idle, and goes on when the gate says so. In between, with all of them waiting, the engine
switches the events. Other iterations pass without any of this.

Events that last a time end by the clock, and those `at` a time begin by it, in the midst of whatever goes on. The clock
starts when all nodes have met before iteration 0.

Nodes talk to the engine over a Unix stream socket, which works across network namespaces, in JSON lines::

    node -> gate   {"hello": "w1"}
    node -> gate   {"barrier": 48}
    gate -> node   {"go": 48}
    gate -> node   {"abort": "w2 disconnected"}     instead of go, and the last line
    node -> gate   {"report": {...}}                one way: progress, errors
    node -> gate   {"bye": true}                    an end in order
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scenarios import Scenario, Spell, Window
from testbed.bursts.director import Director
from testbed.topology import host_names

SUN_PATH_BYTES = 108  # sockaddr_un of unix(7), with its closing zero
MAX_LINE_BYTES = 1 << 20


class GateError(RuntimeError):
    """The run cannot go on past the gate; the text names the node or the cause."""


def gate_iterations(timeline: Iterable[Window], iterations: int, spells: Iterable[Spell] = ()) -> list[int]:
    """The iterations before which all nodes must meet at the gate, sorted.

    A window that ends with the run needs no meeting: the end of the run ends it. Events by the clock need one before
    iteration 0, which starts the clock.
    """
    edges = {edge for window in timeline for edge in (window.start, window.stop)}
    edges |= {0 if spell.iteration is None else spell.iteration for spell in spells}
    return sorted(edge for edge in edges if edge < iterations)


def _check_path(path: str | Path) -> str:
    if len(os.fsencode(path)) >= SUN_PATH_BYTES:
        raise GateError(
            f"gate socket {path}: longer than the {SUN_PATH_BYTES - 1} bytes of a Unix socket's path; "
            "give a path relative to the working directory"
        )
    return os.fspath(path)


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
        self._path = _check_path(path)
        self._scenario = scenario
        self._timeline, self._spells = scenario.timeline(), scenario.spells()
        self._nodes = host_names(scenario.topology.workers)
        self._director = director
        self._log_path = log
        self._queues = queues
        self._on_report = on_report
        self._on_flip = on_flip
        self._on_disconnect = on_disconnect
        self._started = time.monotonic() if started is None else started
        self._active: dict[int, Window] = {}
        self._clock_start: float | None = None  # time.monotonic(), of the zero of `at: {time: ...}`
        self._running: dict[Spell, float] = {}  # until when (time.monotonic())
        self._iteration = dict.fromkeys(self._nodes, 0)  # that each node is in, by its reports
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
        self._log = open(self._log_path, "a", encoding="utf-8")
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._wake_receiver):
            self._selector.register(source, selectors.EVENT_READ)
        self._write("start")
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
            self._end_bursts()
            self._write("end")
        except Exception as error:
            self.error = self.error or error
        for connection in list(self._connections.values()):
            connection.socket.close()
        for resource in (self._listener, self._wake_receiver, self._wake_sender, self._selector, self._log):
            resource.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    # -- the thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        stopping = False
        try:
            while True:
                due = None if stopping else self._next_due()
                timeout = 0 if stopping else None if due is None else max(0.0, due - time.monotonic())
                ready = self._selector.select(timeout)
                if stopping and not ready:      # all that the nodes have said before has been heard
                    return
                self._by_the_clock()
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
                self._iteration[node] = report["iteration"] + 1
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
            self._flip(iteration)
            self._waiting.clear()
            for connection in self._connections.values():
                connection.send({"go": iteration})

    def _abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason
        self._waiting.clear()
        for connection in self._connections.values():
            connection.send({"abort": self._aborted})

    # -- flips -----------------------------------------------------------------------------------------------

    def _flip(self, iteration: int) -> None:
        for window in [window for window in self._active.values() if window.stop <= iteration]:
            self._stop_window(window, iteration)
        for window in self._timeline:
            if window.start == iteration:
                self._director.start(window.event)
                self._active[window.event] = window
                self._write_flip("burst_start", iteration, window.event)
        for spell in self._spells:
            if spell.iteration == iteration:
                self._start_spell(spell, iteration)
        if iteration == 0:
            self._clock_start = time.monotonic()

    def _stop_window(self, window: Window, iteration: int) -> None:
        self._director.stop(window.event)
        del self._active[window.event]
        self._write_flip("burst_stop", iteration, window.event)

    def _next_due(self) -> float | None:
        """time.monotonic() of the next flip by the clock."""
        return min([*self._running.values(), *(due for due, _ in self._to_come())], default=None)

    def _to_come(self) -> list[tuple[float, Spell]]:
        """(time.monotonic(), spell) of those that the clock will start."""
        if self._clock_start is None or self._aborted is not None:
            return []
        return [(self._clock_start + spell.time, spell) for spell in self._spells if spell.time is not None]

    def _by_the_clock(self) -> None:
        now = time.monotonic()
        for spell in [spell for spell, until in self._running.items() if until <= now]:
            self._stop_spell(spell)
        for due, spell in self._to_come():
            if due <= now:
                self._spells.remove(spell)
                self._start_spell(spell, self._span_of(spell)[0], due)

    def _start_spell(self, spell: Spell, iteration: int, planned: float | None = None) -> None:
        for other in [other for other in self._running if other.event == spell.event]:
            self._stop_spell(other)  # lasts longer than until its own next start
        self._director.start(spell.event)
        self._running[spell] = time.monotonic() + spell.seconds
        self._write_flip("burst_start", iteration, spell.event, planned)

    def _stop_spell(self, spell: Spell) -> None:
        planned = self._running.pop(spell)
        self._director.stop(spell.event)
        self._write_flip("burst_stop", self._span_of(spell)[1], spell.event, planned)

    def _span_of(self, spell: Spell) -> tuple[int, int]:
        """First and one past the last iteration that the nodes it touches are in now."""
        channels = self._director.event(spell.event).channels(self._scenario.topology)
        iterations = [self._iteration[worker] for worker, _ in channels]
        end = self._scenario.workload.iterations
        return min(*iterations, end - 1), min(max(iterations) + 1, end)

    def _end_bursts(self) -> None:
        for window in list(self._active.values()):
            self._stop_window(window, window.stop)
        for spell in list(self._running):
            self._stop_spell(spell)
        for spell in [spell for spell in self._spells if spell.time is not None]:
            entry = self._write("missed", event=spell.event, planned_s=spell.time)  # the run was over before
            self._on_flip(entry)

    def _write_flip(self, kind: str, iteration: int, index: int, planned: float | None = None) -> None:
        fields = self._director.facts(index)
        if planned is not None:
            fields["planned_s"] = round(planned - self._started, 6)
        self._on_flip(self._write(kind, iteration=iteration, event=index, **fields))

    def _write(self, kind: str, **fields: Any) -> dict[str, Any]:
        entry = {
            "time_s": round(time.monotonic() - self._started, 6),
            "wall": datetime.now(UTC).isoformat(),
            "kind": kind,
            **fields,
            "counters": [
                {"host": host, "direction": direction, "seen": count.seen, "dropped": count.dropped}
                for (host, direction), count in self._director.counters().items()
            ],
            "queues": self._queues(),
        }
        self._log.write(json.dumps(entry) + "\n")
        self._log.flush()
        return entry


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
            self._socket.connect(_check_path(path))
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
