"""Packed matrices as an engine keeps them: the forms that sources map to without loss.

Matrices are [rows, columns], outputs by inputs; every factor is finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "Float8",
    "Int4",
    "Int8",
    "Int8Groups",
    "Kept",
    "KeptForm",
    "PackedSource",
    "Rounding",
    "cut",
    "group_of_cut",
]

Floats = npt.NDArray[np.float32]
Spans = Sequence[tuple[int, int]]


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
# A form, and how many columns have a factor together, 0 where whole rows have.
KeptForm = tuple[type[Kept], int]


@dataclass(frozen=True)
class PackedSource:
    """How a tensor can be kept packed, known before it is read.

    `read` gives it in `form`; `group` is how many columns have a factor together, 0 where whole
    rows have.
    """

    form: type[Kept]
    read: Callable[[], Kept]
    group: int = 0


def group_of_cut(group: int, spans: Spans) -> int:
    """How many columns have a factor together where these spans of columns, (first, end), are cut.

    Groups that a span cuts become smaller ones, all of them.
    """
    return gcd(group, *(border for span in spans for border in span))


def cut(kept: Kept, axis: int, spans: Spans) -> Kept | None:
    """The rows (axis 0) or columns (axis 1) of the spans, which are (first, end).

    What is one span is a view. Columns are in groups of `group_of_cut`, of which several may have
    one factor. None: two numbers of a byte are cut apart.
    """
    if isinstance(kept, Int8 | Float8):
        codes = _taken(kept.codes, axis, spans)
        return type(kept)(codes, _taken(kept.scale, 0, spans) if axis == 0 else kept.scale)
    tables = kept.scale, kept.zero
    if axis == 0:
        return type(kept)(*(_taken(array, 0, spans) for array in (kept.codes, *tables)))
    in_byte = 2 if isinstance(kept, Int4) else 1
    group = in_byte * kept.codes.shape[1] // kept.scale.shape[1]
    size = group_of_cut(group, spans)
    if size % in_byte:
        return None
    scale, zero = (
        _taken(np.repeat(table, group // size, 1), 1, _counted(spans, size)) for table in tables
    )
    return type(kept)(_taken(kept.codes, 1, _counted(spans, in_byte)), scale, zero)


def _counted(spans: Spans, size: int) -> Spans:
    """The spans in units of so many columns."""
    return [(first // size, end // size) for first, end in spans]


def _taken(array: npt.NDArray[Any], axis: int, spans: Spans) -> npt.NDArray[Any]:
    along = (slice(None),) * axis
    parts = [array[(*along, slice(*span))] for span in spans]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


@dataclass(frozen=True)
class Rounding:
    """How the vectors a matrix is multiplied with are rounded before the product.

    To `form`: int8's integers from −128 to 127, or fp8's e4m3 numbers, up to 448, times a factor:
    `scale`, or where that is None the vector's largest number / 127.5 or 448.
    """

    form: Literal["int8", "fp8"]
    scale: float | None = None
