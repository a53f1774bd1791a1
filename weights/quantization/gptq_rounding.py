"""GPTQ: rounding in which later columns compensate the error of earlier ones.

Frantar et al., 2022 (arXiv:2210.17323). It minimizes the error of the matrix's outputs instead of
its weights: (W − Q)·M·(W − Q)ᵀ, with M the second moments of the inputs, Σ x·xᵀ over a text. The
result is then improved by coordinate descent over the values, as in QuantEase (Behdin et al., 2023,
arXiv:2309.01885), and over the scales.
"""

from collections.abc import Callable

import numpy as np

from swiftchat.weights.formats.arrays import Floats

# (column, weights of that column) -> (quantized values, dequantized weights).
RoundColumn = Callable[[int, Floats], tuple[Floats, Floats]]
# (group, values [columns, rows], gradient, moments) -> the values dequantized with new scales;
# `gradient` is −½ times the gradient of the error at those columns, `moments` their block of M.
RefitScales = Callable[[int, Floats, Floats, Floats], Floats]

# Added to M's diagonal, relative to its mean: bounds directions missing from the text.
_DAMPING = 0.02
_BLOCK = 32  # columns between two updates of all following columns
_SWEEPS = 6  # over all groups; the last one lowers the error by less than 1 %


class GptqRounding:
    """GPTQ's error propagation for inputs with the second moments `moments`.

    `moments` [columns, columns] is symmetric; it is kept, and its diagonal is raised in place.
    Columns are rounded in the order of their inputs' size, the largest first, when most columns
    are left to compensate. `error_weights` is the cost of a column's squared error when all other
    columns compensate it: 1 / the diagonal of M⁻¹.
    """

    def __init__(self, moments: Floats) -> None:
        diagonal = np.diag(moments)
        self._order = np.argsort(-diagonal, kind="stable")
        self._moments = moments
        added = _DAMPING * float(diagonal.mean()) or 1.0
        self._moments[np.diag_indices_from(moments)] += np.where(diagonal == 0, 1 + added, added)
        ordered = self._moments[np.ix_(self._order, self._order)].astype(np.float64)
        inverse = np.linalg.inv(ordered)
        self.error_weights = np.empty_like(diagonal)
        self.error_weights[self._order] = 1 / np.diag(inverse)
        # Upper triangular U with Uᵀ·U = M⁻¹.
        self._propagation = np.linalg.cholesky(inverse).T.astype(np.float32)

    def quantize(self, matrix: Floats, round_column: RoundColumn) -> tuple[Floats, Floats]:
        """Return values and dequantized weights of `matrix` [rows, columns], as [columns, rows]."""
        # Transposed, so that columns are contiguous.
        remaining, u = np.ascontiguousarray(matrix.T[self._order]), self._propagation
        values, dequantized = np.empty_like(remaining), np.empty_like(remaining)
        for start in range(0, len(u), _BLOCK):
            stop = min(start + _BLOCK, len(u))
            block, errors = remaining[start:stop], np.empty_like(remaining[start:stop])
            for i, column in enumerate(self._order[start:stop]):
                at = start + i
                values[column], dequantized[column] = round_column(int(column), block[i])
                errors[i] = (block[i] - dequantized[column]) / u[at, at]
                block[i + 1 :] -= u[at, at + 1 : stop, None] * errors[i]
            remaining[stop:] -= u[start:stop, stop:].T @ errors
        return values, dequantized

    def refine(
        self,
        matrix: Floats,
        values: Floats,
        dequantized: Floats,
        round_column: RoundColumn,
        group_size: int = _BLOCK,
        refit: RefitScales | None = None,
    ) -> None:
        """Lower the output error of a quantized `matrix` [rows, columns] by coordinate descent.

        Modifies `values` and `dequantized`, as returned by `quantize`, in place. For each group
        of columns in turn, `refit` first updates its scales; then each of its columns gets the
        values of least error with all other columns fixed.
        """
        for _ in range(_SWEEPS):
            gradient = self._moments @ (matrix.T - dequantized)  # of the error, times −½
            for start in range(0, len(values), group_size):
                group = slice(start, start + group_size)
                before, moments = dequantized[group].copy(), self._moments[group, group]
                local = gradient[group].copy()
                if refit is not None:
                    dequantized[group] = refit(start // group_size, values[group], local, moments)
                    local += moments @ (before - dequantized[group])
                for i, column in enumerate(range(start, start + len(local))):
                    target = dequantized[column] + local[i] / moments[i, i]
                    values[column], now = round_column(column, target)
                    local[i + 1 :] -= moments[i, i + 1 :, None] * (now - dequantized[column])
                    dequantized[column] = now
                gradient += self._moments[:, group] @ (before - dequantized[group])


def scale_update(steps: Floats, gradient: Floats, moments: Floats) -> Floats:
    """Return the change of a group's scales of least error, for fixed values.

    `steps` [columns, rows] are the values minus the zero point; `gradient` and `moments` are
    those of `RefitScales`.
    """
    curvature = np.einsum("cr,cr->r", steps, moments @ steps)
    update: Floats = np.einsum("cr,cr->r", steps, gradient) / np.where(curvature > 0, curvature, 1)
    return update
