"""The server's mean of the workers' gradients.

A mean is one function of the gradients and of what arrived of them, and one line in `AGGREGATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_NORM_BLOCK = 1 << 20


def mean_zero_filled(gradients: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Mean over all workers, a missing chunk counting as zeros (Algorithm 2, line 26; Algorithm 3, line 8).

    Args:
        gradients: per worker, (size,) float32.
        out: (size,) float32.
    """
    _sum(gradients, out)
    out *= np.float32(1 / len(gradients))


def mean_of_contributors(
    gradients: Sequence[np.ndarray], out: np.ndarray, arrived: Sequence[np.ndarray], chunk_values: int
) -> None:
    """Mean of each chunk over the workers whose chunk arrived; zeros where none did.

    Args:
        gradients: per worker, (size,) float32, zero where a chunk is missing.
        out: (size,) float32.
        arrived: per worker, (chunks,) bool.
        chunk_values: float32 values of a chunk; the last may be shorter.
    """
    _sum(gradients, out)
    scale = np.float32(1) / np.maximum(np.sum(arrived, axis=0, dtype=np.float32), 1)
    whole = len(out) // chunk_values
    rows = out[: whole * chunk_values].reshape(whole, chunk_values)
    rows *= scale[:whole, np.newaxis]
    out[whole * chunk_values :] *= scale[whole:]


def _sum(gradients: Sequence[np.ndarray], out: np.ndarray) -> None:
    np.add(gradients[0], gradients[1], out=out) if len(gradients) > 1 else np.copyto(out, gradients[0])
    for gradient in gradients[2:]:
        out += gradient


def l2_norm(vector: np.ndarray) -> float:
    """L2 norm of a (size,) float32 vector, summed in double precision block by block: no copy of the whole."""
    total = 0.0
    for start in range(0, len(vector), _NORM_BLOCK):
        block = vector[start : start + _NORM_BLOCK]
        total += float(np.dot(block, block))
    return total**0.5


Aggregate = Callable[[Sequence[np.ndarray], np.ndarray, Sequence[np.ndarray], int], None]
AGGREGATES: dict[str, Aggregate] = {
    "zero_fill": lambda gradients, out, arrived, chunk_values: mean_zero_filled(gradients, out),
    "contributors": mean_of_contributors,
}
