"""Does a matrix look as an initialiser drew it?"""

from __future__ import annotations

from torch import Tensor

_SLACK = 1.35
_LEAST_ROWS, _LEAST_WIDTH = 32, 32


def looks_drawn(matrix: Tensor) -> bool:
    """True if all rows are as long as chance makes them: drawn independently, the norms of rows of width H
    differ by 1 / sqrt(2 H) of their mean and no more, while those of trained embeddings and heads differ
    several times as much. Also true of a matrix that is constant. Small matrices are never suspected.
    """
    if matrix.dim() != 2 or matrix.shape[0] < _LEAST_ROWS or matrix.shape[1] < _LEAST_WIDTH:
        return False
    norms = matrix.float().norm(dim=1)
    mean = float(norms.mean())
    spread = float(norms.std()) / mean if mean > 0 else 0.0
    return spread < _SLACK / (2 * matrix.shape[1]) ** 0.5
