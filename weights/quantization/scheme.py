"""Quantized matrices in memory, in the schemes that the engine computes with.

Matrices are [rows, columns], outputs by inputs. All scales are finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.arrays import Floats

Spans = Sequence[tuple[int, int]]

_BLOCK_COLUMNS = 32  # of the smallest ggml blocks, and of the parts of the larger ones


@dataclass(frozen=True)
class Int4:
    """weight[r, c] = scale[r, g]·(q[r, c] − zero_point[r, g]), g = c // (columns // groups).

    `values` uint8 [rows, columns/2] packs two values q per byte, the lower column in the low
    half; `scale` and `zero_point` are [rows, groups]. Zero points are integers from 0 to 15,
    except in formats with a float minimum per group: there zero_point = −minimum / scale.
    """

    values: npt.NDArray[np.uint8]
    scale: Floats
    zero_point: Floats


@dataclass(frozen=True)
class Int8:
    """weight[r, c] = scale[r]·values[r, c]; `values` int8 [rows, columns], `scale` [rows]."""

    values: npt.NDArray[np.int8]
    scale: Floats


@dataclass(frozen=True)
class Int8Groups:
    """weight[r, c] = scale[r, g]·(values[r, c] − zero_point[r, g]), g = c // (columns // groups).

    `values` uint8 [rows, columns] are centered at 128, and so are the zero points, which may be
    fractional; `scale` and `zero_point` are [rows, groups].
    """

    values: npt.NDArray[np.uint8]
    scale: Floats
    zero_point: Floats


@dataclass(frozen=True)
class Float8:
    """weight[r, c] = scale[r, g]·e4m3(values[r, c]), g = c // (columns // groups).

    `values` uint8 [rows, columns]; `scale` is [rows, groups], with one scale per row [rows, 1].
    """

    values: npt.NDArray[np.uint8]
    scale: Floats


@dataclass(frozen=True)
class Mxfp4:
    """weight[r, c] = e2m1(values[r, c])·2^(scale[r, g] − 127), g = c // (columns // groups).

    `values` uint8 [rows, columns/2] packs two elements per byte, the lower column in the low half;
    `scale` is uint8 [rows, groups]. All weights are finite.
    """

    values: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Nvfp4:
    """weight[r, c] = row_scale[r]·e4m3(scale[r, g])·e2m1(values[r, c]).

    g = c // (columns // groups), as for `Mxfp4`.
    `values` uint8 [rows, columns/2] packs two elements per byte, the lower column in the low half;
    `scale` is uint8 [rows, groups], without NaN, `row_scale` float32 [rows].
    """

    values: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.uint8]
    row_scale: Floats


@dataclass(frozen=True)
class GgufBlocks:
    """Rows of ggml blocks as a GGUF file stores them, of any type in `BLOCK_TYPES`.

    `blocks` is uint8 [rows, row bytes]. The matrix has their columns in `spans`, (start, stop)
    each, one beside the other. `tensor_name` is for errors. Scales may be infinite or NaN.
    """

    type_name: str
    blocks: npt.NDArray[np.uint8]
    spans: Spans
    tensor_name: str

    @property
    def columns(self) -> int:
        return sum(stop - start for start, stop in self.spans)


QuantizedMatrix = Int4 | Int8 | Int8Groups | Float8 | Mxfp4 | Nvfp4


class Scheme(NamedTuple):
    """The type of quantized matrices and their group size; 0: one scale per row."""

    matrix_type: type[QuantizedMatrix]
    group_size: int = 0


@dataclass(frozen=True)
class PackedSource:
    """A tensor that can stay quantized: its scheme, known from the header, and a reader."""

    scheme: Scheme
    read: Callable[[], QuantizedMatrix]


@dataclass(frozen=True)
class ActivationQuantization:
    """How the inputs of a matmul are quantized (W8A8).

    To int8 (−128 to 127) or fp8 (e4m3, up to 448), times a scale: the fixed `scale`, or where
    that is None one per vector, its absolute maximum / 127.5 or 448.
    """

    dtype: Literal["int8", "fp8"]
    scale: float | None = None


def slice_blocks(matrix: GgufBlocks, axis: int, spans: Spans) -> GgufBlocks | None:
    """Return the rows (axis 0) or columns (axis 1) in `spans` of a matrix with all its columns.

    Returns None if a border of columns is not a multiple of 32, or the columns are in another order
    already.
    """
    if axis == 0:
        return replace(matrix, blocks=_take(matrix.blocks, 0, spans))
    if len(matrix.spans) > 1 or any(border % _BLOCK_COLUMNS for span in spans for border in span):
        return None
    return replace(matrix, spans=spans)


def sliced_group_size(group_size: int, spans: Spans) -> int:
    """Return the group size of a matrix sliced to column spans, (start, stop) each.

    A span border inside a group makes all groups of the slice smaller.
    """
    return gcd(group_size, *(border for span in spans for border in span))


def slice_matrix(matrix: QuantizedMatrix, axis: int, spans: Spans) -> QuantizedMatrix | None:
    """Return the rows (axis 0) or columns (axis 1) in `spans`, (start, stop) each.

    A single span gives a view. Sliced columns have groups of `sliced_group_size`. Returns None
    when a span border separates two 4-bit values of one byte.
    """
    arrays: list[npt.NDArray[Any]] = [getattr(matrix, field.name) for field in fields(matrix)]
    if axis == 0:
        return type(matrix)(*(_take(array, 0, spans) for array in arrays))
    per_byte = 2 if isinstance(matrix, Int4 | Mxfp4 | Nvfp4) else 1
    values = _take(matrix.values, 1, _in_units(spans, per_byte))
    if isinstance(matrix, Int8) or (isinstance(matrix, Float8) and matrix.scale.shape[1] == 1):
        return type(matrix)(values, matrix.scale)
    group_size = per_byte * matrix.values.shape[1] // matrix.scale.shape[1]
    new_size = sliced_group_size(group_size, spans)
    if new_size % per_byte:
        return None
    return type(
        matrix
    )(
        values,
        *(
            array
            if array.ndim == 1  # of the rows
            else _take(np.repeat(array, group_size // new_size, 1), 1, _in_units(spans, new_size))
            for array in arrays[1:]
        ),
    )


def _in_units(spans: Spans, size: int) -> Spans:
    """Convert spans of columns to spans of units of `size` columns."""
    return [(start // size, stop // size) for start, stop in spans]


def _take(array: npt.NDArray[Any], axis: int, spans: Spans) -> npt.NDArray[Any]:
    leading = (slice(None),) * axis
    parts = [array[(*leading, slice(*span))] for span in spans]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
