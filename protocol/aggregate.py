"""The server's mean of the workers' gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NORM_BLOCK = 1 << 20


def mean_zero_filled(gradients: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Mean over all workers, a missing chunk counting as zeros (Algorithm 2, line 26; Algorithm 3, line 8).

    Args:
        gradients: per worker, (size,) float32.
        out: (size,) float32.
    """
    np.add(gradients[0], gradients[1], out=out) if len(gradients) > 1 else np.copyto(out, gradients[0])
    for gradient in gradients[2:]:
        out += gradient
    out *= np.float32(1 / len(gradients))


def l2_norm(vector: np.ndarray) -> float:
    """L2 norm of a (size,) float32 vector, summed in double precision block by block: no copy of the whole."""
    total = 0.0
    for start in range(0, len(vector), _NORM_BLOCK):
        block = vector[start : start + _NORM_BLOCK]
        total += float(np.dot(block, block))
    return total**0.5
