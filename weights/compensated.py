"""Rounding that lets the columns still to come make up for the error of those before.

GPTQ: Frantar et al., 2022 (arXiv:2210.17323). What counts is not how far weights move but how far
products do: (W − Q)·M·(W − Q)ᵀ, where M is the second moment of the inputs, Σ x·xᵀ over a text.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Compensation"]

Floats = npt.NDArray[np.float32]

# Of the mean of M's diagonal, added to it: directions that a text does not show stay in bounds.
_DAMPING = 0.01
_BLOCK = 32  # columns between two updates of all that follow


class Compensation:
    """How the error of each column is spread over the columns after it, for inputs like `moment`.

    `moment` [columns, columns] is symmetric. Columns are taken in the order of their inputs'
    size, the largest first, while there are most others left to make up for them. `sizes` is the
    diagonal of the moment.
    """

    def __init__(self, moment: Floats) -> None:
        self.sizes = sizes = np.diag(moment).copy()
        self._order = np.argsort(-sizes, kind="stable")
        whole = moment[np.ix_(self._order, self._order)].astype(np.float64)
        unseen = np.diag(whole) == 0
        whole[unseen, unseen] = 1
        whole[np.diag_indices_from(whole)] += _DAMPING * float(sizes.mean()) or 1.0
        # Upper triangular U with Uᵀ·U the inverse of M.
        self._spread = np.linalg.cholesky(np.linalg.inv(whole)).T.astype(np.float32)

    def codes(
        self, matrix: Floats, round_column: Callable[[int, Floats], tuple[Floats, Floats]]
    ) -> Floats:
        """Codes [rows, columns] of `matrix`.

        `round_column(column, numbers)` gives the codes of some numbers in a column, and what they
        mean.
        """
        # Columns as rows, so that one lies together.
        left, spread = np.ascontiguousarray(matrix.T[self._order]), self._spread
        codes = np.empty_like(left)
        for start in range(0, len(spread), _BLOCK):
            stop = min(start + _BLOCK, len(spread))
            block, errors = left[start:stop], np.empty_like(left[start:stop])
            for i, column in enumerate(self._order[start:stop]):
                at = start + i
                codes[column], meant = round_column(int(column), block[i])
                errors[i] = (block[i] - meant) / spread[at, at]
                block[i + 1 :] -= spread[at, at + 1 : stop, None] * errors[i]
            left[stop:] -= spread[start:stop, stop:].T @ errors
        return np.ascontiguousarray(codes.T)
