"""Packed matrices as an engine keeps them: the forms that sources map to without loss.

Matrices are [rows, columns], outputs by inputs; every factor is finite.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Float8", "Int4", "Int8", "Int8Groups", "Kept", "Rounding"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Int4:
    """weight[r, c] = scale[r, g]·(q[r, c] − zero[r, g]), g = c // (columns // groups).

    `codes` uint8 [rows, columns/2] has two numbers a byte, the lower column in the low half;
    `scale` and `zero` are [rows, groups]. Zeros are whole and from 0 to 15, but where a form has
    a float minimum instead: then zero = −minimum / scale.
    """

    codes: npt.NDArray[np.uint8]
    scale: Floats
    zero: Floats


@dataclass(frozen=True)
class Int8:
    """weight[r, c] = scale[r]·codes[r, c]; `codes` int8 [rows, columns], `scale` [rows]."""

    codes: npt.NDArray[np.int8]
    scale: Floats


@dataclass(frozen=True)
class Int8Groups:
    """weight[r, c] = scale[r, g]·(codes[r, c] − zero[r, g]), g = c // (columns // groups).

    `codes` uint8 [rows, columns] lie around 128, and so do zeros, which need not be whole;
    `scale` and `zero` are [rows, groups].
    """

    codes: npt.NDArray[np.uint8]
    scale: Floats
    zero: Floats


@dataclass(frozen=True)
class Float8:
    """weight[r, c] = scale[r]·e4m3(codes[r, c]); `codes` uint8 [rows, columns], `scale` [rows]."""

    codes: npt.NDArray[np.uint8]
    scale: Floats


Kept = Int4 | Int8 | Int8Groups | Float8


@dataclass(frozen=True)
class Rounding:
    """How the vectors a matrix is multiplied with are rounded before the product.

    To `form`: int8's integers from −128 to 127, or fp8's e4m3 numbers, up to 448, times a factor:
    `scale`, or where that is None the vector's largest number / 127.5 or 448.
    """

    form: Literal["int8", "fp8"]
    scale: float | None = None
