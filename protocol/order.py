"""In which order a round sends its chunks: where some may be lost, those at the end are.

An order is one class, made for a number of chunks and called once a round, and one line in `ORDERS`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

_GOLDEN = 0x9E3779B9      # 2**32 divided by the golden ratio: multiples of it spread evenly over 0 .. 2**32 (Knuth 6.4)


class ChunkOrder(Protocol):
    """The order of one sender's rounds."""

    def __call__(self, round_: int, values: np.ndarray) -> np.ndarray | None:
        """The order of a round.

        Args:
            round_: its number on the wire.
            values: (chunks, values of a chunk) float32, what is to be sent.

        Returns:
            (chunks,) intp, all chunk numbers, good until the next call; None for 0, 1, 2, ...
        """


class Sequential:
    """As in the model, the plain reading of Algorithm 1: an early stop always leaves the same tail out."""

    def __init__(self, chunks: int) -> None:
        pass

    def __call__(self, round_: int, values: np.ndarray) -> None:
        return None


class Rotating:
    """As in the model, but each step begins elsewhere, the same for all workers: what is left out moves on."""

    def __init__(self, chunks: int) -> None:
        self._ascending = np.arange(chunks)
        self._order = np.empty_like(self._ascending)

    def __call__(self, round_: int, values: np.ndarray) -> np.ndarray:
        chunks = len(self._order)
        start = (round_ // 2 * _GOLDEN % (1 << 32)) * chunks >> 32      # a step is a reduce and a broadcast
        self._order[: chunks - start] = self._ascending[start:]
        self._order[chunks - start :] = self._ascending[:start]
        return self._order


class ByNorm:
    """Chunks of the largest L2 norm first, so that the smallest are left out."""

    def __init__(self, chunks: int) -> None:
        self._squares = np.empty(chunks, np.float32)

    def __call__(self, round_: int, values: np.ndarray) -> np.ndarray:
        np.einsum("ij,ij->i", values, values, out=self._squares)
        # Backwards from the ascending order, where NaN stands last: a gradient that has diverged shows.
        return np.argsort(self._squares, kind="stable")[::-1]


ORDERS: dict[str, type[ChunkOrder]] = {"sequential": Sequential, "rotating": Rotating, "by_norm": ByNorm}
