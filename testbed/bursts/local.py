"""Losses where there is no link to inject them on: drawn, with a seed, where a frame is received (engine `local`).

What is in force and what was counted stand in a file that the engine and its processes map into memory, so a change by
the clock reaches a process in the midst of an iteration, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from scenarios.events import LinkImpairment, LossEvent
from testbed.bursts import Counters, Injector, InjectorError, LinkEnd, LinkKey
from testbed.bursts.actions.loss import ALL_LOST, NO_LOSS, STATES, Chain, chain

LINKS_FILE = "links.bin"
_LINK = np.dtype(
    [
        ("host", "S8"), ("direction", "S9"), ("changes", "u8"),
        ("moves", "f8", (STATES, STATES)), ("losses", "f8", STATES), ("correlation", "f8"),
        ("seen", "u8"), ("dropped", "u8"),
    ],
    align=True,
)


class Draws:
    """Which frames a chain loses, for many frames a call."""

    def __init__(self, model: Chain, rng: np.random.Generator) -> None:
        self._rng = rng
        self._moves = np.array(model.moves)
        self._losses = np.array(model.losses)
        self._correlation = model.correlation
        self._still = bool((self._losses == self._losses[0]).all())  # moving makes no difference
        self._state, self._left, self._last = 0, self._stay(0), 0.5

    def lost(self, frames: int) -> np.ndarray:
        """(frames,) bool."""
        draws = self._rng.random(frames)
        if c := self._correlation:
            from scipy.signal import lfilter  # a second, which other losses do not need

            draws, _ = lfilter([1 - c], [1, -c], draws, zi=[c * self._last])
            self._last = draws[-1] if frames else self._last
        return draws < (self._losses[0] if self._still else self._states(frames))

    def _states(self, frames: int) -> np.ndarray:
        """(frames,) loss of the state that the chain is in at each frame; a stay at a time."""
        losses = np.empty(frames)
        done = 0
        while done < frames:
            if not self._left:
                away = self._moves[self._state].copy()
                away[self._state] = 0
                self._state = int(np.searchsorted(away.cumsum(), self._rng.random() * away.sum(), side="right"))
                self._left = 1 + self._stay(self._state)
            count = min(self._left, frames - done)
            losses[done : done + count] = self._losses[self._state]
            done += count
            self._left -= count
        return losses

    def _stay(self, state: int) -> int:
        """Frames for which the chain, just before its next move, goes on in its state."""
        leave = 1 - self._moves[state, state]
        return int(self._rng.geometric(leave)) - 1 if leave > 1e-12 else 1 << 62


class LocalLink:
    """One direction of one worker's link, as `protocol.endpoint.Impairment`.

    Attributes:
        seen, dropped: frames so far.
    """

    def __init__(self, entry: np.ndarray, rng: np.random.Generator) -> None:
        self._entry, self._rng = entry, rng
        self._changes = 0
        self._draws: Draws | None = None

    def keep(self, frames: int) -> np.ndarray | None:
        """(frames,) bool: those that arrive; None for all."""
        self._entry["seen"] += frames
        if self._entry["changes"] != self._changes:
            self._changes = int(self._entry["changes"])
            model = Chain(self._entry["moves"], self._entry["losses"], float(self._entry["correlation"]))
            self._draws = Draws(model, self._rng) if any(model.losses) else None
        if self._draws is None:
            return None
        kept = ~self._draws.lost(frames)
        self._entry["dropped"] += frames - int(kept.sum())
        return kept


def _table(folder: Path) -> np.ndarray:
    return np.memmap(folder / LINKS_FILE, _LINK, "r+")


class LocalLinks:
    """The links that one process receives from.

    Args:
        folder: where the engine's `LocalInjector` has put its file.
        node: whose; part of the seed, so that no two processes draw the same.
        seed: of the run.
    """

    def __init__(self, folder: Path, node: str, seed: int) -> None:
        self._node, self._seed = node, seed
        self._entries = {(e["host"].decode(), e["direction"].decode()): e for e in _table(folder)}

    def link(self, host: str, direction: str) -> LocalLink:
        """One direction of `host`'s link."""
        entropy = [self._seed, zlib.crc32(f"{self._node} {host} {direction}".encode())]
        return LocalLink(self._entries[host, direction], np.random.default_rng(entropy))


class LocalInjector(Injector):
    """The engine's side.

    Args:
        folder: where the file goes; it must be there before any process starts.
        hosts: the workers.
    """

    name = "local"

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        keys = [(host, direction) for host in hosts for direction in ("to_server", "to_worker")]
        np.zeros(len(keys), _LINK).tofile(folder / LINKS_FILE)
        table = _table(folder)
        self._entries = dict(zip(keys, table, strict=True))
        for (host, direction), entry in self._entries.items():
            entry["host"], entry["direction"] = host.encode(), direction.encode()
        table.flush()

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        """Nothing to attach to."""

    def set(self, changes: Mapping[LinkKey, Sequence[LinkImpairment]]) -> None:
        for host, direction in changes:
            if (host, direction) not in self._entries:
                raise InjectorError(f"events on {host} {direction}: engine local has the links of workers only")
        for key, events in changes.items():
            model = NO_LOSS
            for event in events:
                model = chain(event) if isinstance(event, LossEvent) and model is not ALL_LOST else ALL_LOST
            entry = self._entries[key]
            entry["moves"], entry["losses"], entry["correlation"] = model.moves, model.losses, model.correlation
            entry["changes"] += 1  # last: it makes the process look

    def counters(self) -> dict[LinkKey, Counters]:
        return {key: Counters(int(e["seen"]), int(e["dropped"])) for key, e in self._entries.items()}

    def close(self) -> None:
        """The file goes with the run's other scratch files."""
