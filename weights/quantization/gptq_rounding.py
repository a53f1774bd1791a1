"""Rounding that lets the columns still to come make up for the error of those before.

GPTQ: Frantar et al., 2022 (arXiv:2210.17323). What counts is not how far weights move but how far
products do: (W − Q)·M·(W − Q)ᵀ, where M is the second moment of the inputs, Σ x·xᵀ over a text.
What was found so is then improved number by number, as QuantEase does it (Behdin et al., 2023,
arXiv:2309.01885), and factor by factor.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["GptqRounding", "gained"]

Floats = npt.NDArray[np.float32]
# (column, numbers): the codes of some numbers in a column, and what they mean.
RoundColumn = Callable[[int, Floats], tuple[Floats, Floats]]
# (group, codes, left, within): what a group's codes [columns, rows] mean by new factors; `left` is
# the slope of the loss at those columns, times −½, and `within` the moment among them.
Refit = Callable[[int, Floats, Floats, Floats], Floats]

# Of the mean of M's diagonal, added to it: directions that a text does not show stay in bounds.
_DAMPING = 0.02
_BLOCK = 32  # columns between two updates of all that follow
_SWEEPS = 6  # over all groups; the last lowers the loss by less than a hundredth


class GptqRounding:
    """How the error of each column is spread over the columns after it, for inputs like `moment`.

    `moment` [columns, columns] is symmetric, and kept; its diagonal is raised in place. Columns are
    taken in the order of their inputs' size, the largest first, while there are most others left to
    make up for them. `sizes` says what a column's error costs, squared, when all others make up for
    it: 1 / the diagonal of M⁻¹.
    """

    def __init__(self, moment: Floats) -> None:
        sizes = np.diag(moment)
        self._order = np.argsort(-sizes, kind="stable")
        self._moment = moment
        added = _DAMPING * float(sizes.mean()) or 1.0
        self._moment[np.diag_indices_from(moment)] += np.where(sizes == 0, 1 + added, added)
        whole = self._moment[np.ix_(self._order, self._order)].astype(np.float64)
        inverse = np.linalg.inv(whole)
        self.sizes = np.empty_like(sizes)
        self.sizes[self._order] = 1 / np.diag(inverse)
        # Upper triangular U with Uᵀ·U the inverse of M.
        self._spread = np.linalg.cholesky(inverse).T.astype(np.float32)

    def codes(self, matrix: Floats, round_column: RoundColumn) -> tuple[Floats, Floats]:
        """Codes of `matrix` [rows, columns] and what they mean, both [columns, rows]."""
        # Columns as rows, so that one lies together.
        left, spread = np.ascontiguousarray(matrix.T[self._order]), self._spread
        codes, meant = np.empty_like(left), np.empty_like(left)
        for start in range(0, len(spread), _BLOCK):
            stop = min(start + _BLOCK, len(spread))
            block, errors = left[start:stop], np.empty_like(left[start:stop])
            for i, column in enumerate(self._order[start:stop]):
                at = start + i
                codes[column], meant[column] = round_column(int(column), block[i])
                errors[i] = (block[i] - meant[column]) / spread[at, at]
                block[i + 1 :] -= spread[at, at + 1 : stop, None] * errors[i]
            left[stop:] -= spread[start:stop, stop:].T @ errors
        return codes, meant

    def refine(
        self,
        matrix: Floats,
        codes: Floats,
        meant: Floats,
        round_column: RoundColumn,
        group_size: int = _BLOCK,
        refit: Refit | None = None,
    ) -> None:
        """Bring what codes mean nearer to `matrix` [rows, columns], as products see it.

        `codes` and `meant`, as `codes` gives them, are modified in place. One group of columns
        after the other is first refitted, if its factors can be, and gets then, a column at a time,
        the codes of the least loss with all others as they are.
        """
        for _ in range(_SWEEPS):
            slope = self._moment @ (matrix.T - meant)  # of the loss, times −½
            for start in range(0, len(codes), group_size):
                at = slice(start, start + group_size)
                before, within, left = meant[at].copy(), self._moment[at, at], slope[at].copy()
                if refit is not None:
                    meant[at] = refit(start // group_size, codes[at], left, within)
                    left += within @ (before - meant[at])
                for i, column in enumerate(range(start, start + len(left))):
                    number = meant[column] + left[i] / within[i, i]
                    codes[column], now = round_column(column, number)
                    left[i + 1 :] -= within[i, i + 1 :, None] * (now - meant[column])
                    meant[column] = now
                slope += self._moment[:, at] @ (before - meant[at])


def gained(steps: Floats, left: Floats, within: Floats) -> Floats:
    """What to add to the factors of a group of columns for the least loss.

    `steps` [columns, rows] are what codes mean before they are multiplied; `left` and `within` are
    what `Refit` gets.
    """
    weight = np.einsum("cr,cr->r", steps, within @ steps)
    found: Floats = np.einsum("cr,cr->r", steps, left) / np.where(weight > 0, weight, 1)
    return found
