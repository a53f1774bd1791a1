"""MXFP4: 4-bit floats (e2m1) with one power of two (e8m0) per 32 elements.

Layout of checkpoints with `quant_method: mxfp4` (GPT-OSS's published weights), for the experts'
matrices: `…_blocks` U8 [experts, rows, groups, 16], two elements per byte, low half first, and
`…_scales` U8 [experts, rows, groups].
weight[e, r, 32·g + i] = e2m1(element i)·2^(scale[e, r, g] − 127). The unquantized model stores
the transposed matrices: [experts, columns, rows].
Formats: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1.
"""

from collections.abc import Sequence

import numpy as np

from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.quantization.scheme import Mxfp4, PackedSource, Scheme
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import (
    CheckedTensors,
    Shape,
    StoredTensor,
    as_float32,
)

GROUP_SIZE = 32
LARGEST_SCALE = 252  # with which 6, the largest element, is below 2^128
SCALE_DTYPES = ("U8", "F8_E8M0")

_GGML_BYTES = 17  # of a block of GGUF: the scale, then 16 bytes
_IGNORED = {"quant_method", "modules_to_not_convert", "dequantize"}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
LARGEST_ELEMENT, _LARGEST_EXPONENT = np.float32(6), 2


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every pair `…_blocks`, `…_scales` as one tensor named without the suffix."""
    settings.reject_unknown(_IGNORED)
    return {name: _experts(source, name) for name in source.stems("_blocks")}


def _experts(source: CheckedTensors, name: str) -> StoredTensor:
    blocks = f"{name}_blocks"
    experts, rows, groups, _ = source.shape(blocks, ("U8",), 4)
    source.require(blocks, ("U8",), (experts, rows, groups, GROUP_SIZE // 2))
    scales = source.require(f"{name}_scales", SCALE_DTYPES, (experts, rows, groups))
    shape = (experts, groups * GROUP_SIZE, rows)

    def dequantize(start: int, stop: int) -> Floats:
        result = np.empty((stop - start, *shape[1:]), np.float32)
        for expert, matrix in zip(range(start, stop), result, strict=True):
            # Transpose the packed bytes: the floats take eight times as much memory.
            packed = np.ascontiguousarray(source.read(blocks)[expert].reshape(rows, -1).T)
            pairs = matrix.reshape(-1, 2, rows)
            pairs[:, 0] = _E2M1[packed & np.uint8(15)]
            pairs[:, 1] = _E2M1[packed >> np.uint8(4)]
            with np.errstate(over="ignore"):
                by_group = matrix.reshape(groups, GROUP_SIZE, rows)
                by_group *= as_float32(source.read(scales)[expert], "F8_E8M0").T[:, None]
        return result

    packed = packed_source(source, blocks, scales, (experts * rows, groups))
    return StoredTensor("mxfp4", shape, {"blocks": blocks, "scales": scales}, dequantize, packed)


def stored_matrix(source: CheckedTensors, format: str, values: str, scales: str) -> StoredTensor:
    """Return the matrix in `values` U8 [rows, columns / 2] and `scales` [rows, groups]."""
    rows, row_bytes = source.shape(values, ("U8",), 2)
    groups = row_bytes * 2 // GROUP_SIZE
    if row_bytes * 2 % GROUP_SIZE:
        raise source.error(values, f"columns in groups of {GROUP_SIZE}", f"{row_bytes * 2}")
    source.require(scales, SCALE_DTYPES, (rows, groups))

    def dequantize(start: int, stop: int) -> Floats:
        wide = as_float32(source.read(scales)[start:stop], "F8_E8M0")
        return dequantize_e2m1(source.read(values)[start:stop], wide)

    packed = packed_source(source, values, scales, (rows, groups))
    parts = {"packed": values, "scale": scales}
    return StoredTensor(format, (rows, 2 * row_bytes), parts, dequantize, packed)


def dequantize_e2m1(packed: Bytes, scales: Floats) -> Floats:
    """Return elements, two a byte, times the scale of their group, float32 [n, columns]."""
    result = _E2M1[np.stack([packed & np.uint8(15), packed >> np.uint8(4)], 2)]
    by_group = result.reshape(*scales.shape, -1)
    with np.errstate(over="ignore"):
        by_group *= scales[..., None]
    return by_group.reshape(len(packed), -1)


def packed_source(source: CheckedTensors, values: str, scales: str, shape: Shape) -> PackedSource:
    """Return the matrix of these tensors, whose scales have the shape [rows, groups].

    Reading it raises `BadModelFile` if a weight may be infinite or NaN.
    """

    def read() -> Mxfp4:
        scale = source.read(scales).view(np.uint8).reshape(shape)
        if int(scale.max()) > LARGEST_SCALE:
            raise source.error(scales, f"scales up to {LARGEST_SCALE} (2^125)", f"{scale.max()}")
        return Mxfp4(source.read(values).reshape(shape[0], -1), scale)

    return PackedSource(Scheme(Mxfp4, GROUP_SIZE), read)


def of_ggml_blocks(rows: Bytes) -> Mxfp4:
    """Return the matrix of rows of GGUF's blocks, uint8 [n, row bytes].

    A byte of a block has elements i and i + 16, one here has two neighbors.
    """
    blocks = rows.reshape(len(rows), -1, _GGML_BYTES)
    packed = blocks[:, :, 1:]
    low, high = packed & np.uint8(15), packed >> np.uint8(4)
    pairs = [half[..., ::2] | half[..., 1::2] << np.uint8(4) for half in (low, high)]
    values = np.concatenate(pairs, 2).reshape(len(rows), -1)
    return Mxfp4(values, np.ascontiguousarray(blocks[:, :, 0]))


def nearest_e2m1(weights: Floats, scale: Floats) -> tuple[Bytes, Floats]:
    """Return elements (0 to 15) nearest to weights / scale, ties to even, and their weights.

    Elements from 2^e to 2^(e + 1) are multiples of 2^(e − 1), and those below 2 of 1/2.
    """
    scaled = weights / scale
    size = np.minimum(np.abs(scaled), LARGEST_ELEMENT)
    exponent = np.maximum(np.frexp(size)[1] - 1, 0)
    units = np.rint(np.ldexp(size, 1 - exponent)).astype(np.int32)
    values = (2 * exponent + units | np.signbit(scaled) * 8).astype(np.uint8)
    return values, _E2M1[values] * scale


def group_scales(rows: Floats) -> Bytes:
    """Return the scale of each group of rows [n, columns]: uint8 [n, groups].

    The largest element of a group is from 4 up to 8, of which all above 6 become 6, or from 2 up
    to 4 if the squared error is smaller so.
    """
    groups = rows.reshape(len(rows), -1, GROUP_SIZE)
    largest = np.abs(groups).max(2)
    lowest = np.clip(np.frexp(largest)[1] - 1 - _LARGEST_EXPONENT + 127, 1, LARGEST_SCALE - 1)
    both = [(lowest + more).astype(np.uint8) for more in (0, 1)]
    return better_scales(groups, both, [as_float32(own, "F8_E8M0") for own in both])


def better_scales(groups: Floats, candidates: Sequence[Bytes], scales: Sequence[Floats]) -> Bytes:
    """Return for each group the one of two candidates with the smaller squared error.

    `groups` is [n, groups, size]; the candidates, and the scales that they mean, [n, groups].
    """
    errors = [
        np.square(nearest_e2m1(groups, scale[..., None])[1] - groups).sum(2) for scale in scales
    ]
    better: Bytes = np.where(errors[1] < errors[0], candidates[1], candidates[0])
    return better


def scales_of_columns(scales: Bytes) -> Floats:
    """Return the scale of each column, float32 [n, columns]."""
    return np.repeat(as_float32(scales, "F8_E8M0"), GROUP_SIZE, 1)
