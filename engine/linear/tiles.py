"""Parts of quantized matrices: concatenated when packed, cut into tiles when multiplied."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_ROWS = 64  # a tile has a multiple of them; torch packs at most 64 int4 rows together
TILE_ELEMENTS = 1 << 19  # dequantized at a time, so that a tile stays in the processor's cache


def tile_rows(shape: tuple[int, int]) -> int:
    """Return the number of rows of a tile of a matrix [rows, columns]."""
    return max(BLOCK_ROWS, TILE_ELEMENTS // shape[1] // BLOCK_ROWS * BLOCK_ROWS)


def concatenated(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the arrays one below the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
