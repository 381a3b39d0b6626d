"""Loss where there is no link to inject it on: drawn, with a seed, where a frame is received (engine `local`)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from testbed.bursts import Counters, LinkEnd, LinkKey


class LinkImpairment:
    """Loss on one direction of one worker's link, as `protocol.endpoint.Impairment`.

    Attributes:
        probability: of losing a frame; independent for each.
        seen, dropped: frames so far.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.probability = 0.0
        self.seen = self.dropped = 0
        self._rng = rng

    def keep(self, frames: int) -> np.ndarray | None:
        """(frames,) bool: those that arrive; None for all."""
        self.seen += frames
        if not self.probability:
            return None
        kept = self._rng.random(frames) >= self.probability
        self.dropped += frames - int(kept.sum())
        return kept


class Impairments:
    """The impaired links that one process receives from.

    Args:
        node: whose; part of the seed, so that no two processes draw the same.
        seed: of the run.
    """

    def __init__(self, node: str, seed: int) -> None:
        self._node, self._seed = node, seed
        self._links: dict[LinkKey, LinkImpairment] = {}

    def link(self, host: str, direction: str) -> LinkImpairment:
        """The impairment of one direction of `host`'s link."""
        entropy = [self._seed, zlib.crc32(f"{self._node} {host} {direction}".encode())]
        return self._links.setdefault((host, direction), LinkImpairment(np.random.default_rng(entropy)))

    def set(self, losses: list[tuple[str, str, float]]) -> None:
        """Set the losses in force, as the gate's answer lists them: (host, direction, probability)."""
        in_force = {(host, direction): probability for host, direction, probability in losses}
        for key, impairment in self._links.items():
            impairment.probability = in_force.get(key, 0.0)

    def counters(self) -> list[tuple[str, str, int, int]]:
        """(host, direction, seen, dropped) of each link."""
        return [(*key, impairment.seen, impairment.dropped) for key, impairment in self._links.items()]


class LocalInjector:
    """The engine's side: remembers what the gate sets and what the processes have counted.

    The losses themselves reach the processes in the gate's answer.
    """

    name = "local"

    def __init__(self) -> None:
        self._counters: dict[LinkKey, Counters] = {}

    def prepare(self, links: Sequence[LinkEnd]) -> None:
        """Nothing to attach to."""

    def set_loss(self, host: str, direction: str, probability: float) -> None:
        """Nothing to do here: the gate passes it on."""

    def take(self, counters: list[tuple[str, str, int, int]]) -> None:
        """(host, direction, seen, dropped) as a process reports them; cumulative."""
        for host, direction, seen, dropped in counters:
            self._counters[host, direction] = Counters(seen, dropped)

    def counters(self) -> dict[LinkKey, Counters]:
        """Cumulative counters of each link and direction."""
        return dict(self._counters)

    def close(self) -> None:
        """Nothing is left behind."""
