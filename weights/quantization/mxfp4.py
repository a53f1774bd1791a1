"""MXFP4 checkpoints: 4-bit floats (e2m1) with one power of two (e8m0) per 32 elements.

Layout (GPT-OSS's published weights), for the experts' matrices: `…_blocks` U8 [experts, rows,
groups, 16], two elements per byte, low half first, and `…_scales` U8 [experts, rows, groups].
weight[e, r, 32·g + i] = e2m1(element i)·2^(scale[e, r, g] − 127). The unquantized model stores
the transposed matrices: [experts, columns, rows].
Formats: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1.
"""

from collections.abc import Callable

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.quantization.scheme import Int8Groups, Mxfp4Experts, PackedExperts, Scheme
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, StoredTensor, as_float32

LARGEST_SCALE = 252  # with which 6, the largest element, is below 2^128

_BLOCK = 32
_GGML_BYTES = 17  # of a block of GGUF: the scale, then 16 bytes
_INT8_CENTER = 128
_IGNORED = {"quant_method", "modules_to_not_convert", "dequantize"}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every pair `…_blocks`, `…_scales` as one tensor named without the suffix."""
    settings.reject_unknown(_IGNORED)
    return {name: _tensor(source, name) for name in source.stems("_blocks")}


def _tensor(source: CheckedTensors, name: str) -> StoredTensor:
    blocks = f"{name}_blocks"
    experts, rows, groups, _ = source.shape(blocks, ("U8",), 4)
    source.require(blocks, ("U8",), (experts, rows, groups, _BLOCK // 2))
    shape = (experts, groups * _BLOCK, rows)
    scales = source.require(f"{name}_scales", ("U8",), (experts, rows, groups))

    def dequantize(start: int, stop: int) -> Floats:
        result = np.empty((stop - start, *shape[1:]), np.float32)
        for expert, matrix in zip(range(start, stop), result, strict=True):
            # Transpose the packed bytes: the floats take eight times as much memory.
            packed = np.ascontiguousarray(source.read(blocks)[expert].reshape(rows, -1).T)
            pairs = matrix.reshape(-1, 2, rows)
            pairs[:, 0] = _E2M1[packed & np.uint8(15)]
            pairs[:, 1] = _E2M1[packed >> np.uint8(4)]
            with np.errstate(over="ignore"):
                by_group = matrix.reshape(groups, _BLOCK, rows)
                by_group *= as_float32(source.read(scales)[expert], "F8_E8M0").T[:, None]
        return result

    packed = packed_experts(name, lambda: (source.read(blocks), source.read(scales)))
    parts = {"blocks": blocks, "scales": scales}
    return StoredTensor("mxfp4", shape, parts, dequantize, packed_experts=packed)


def packed_experts(name: str, read: Callable[[], tuple[Bytes, Bytes]]) -> PackedExperts:
    """Return the experts of the tensor `name`, whose values and scales `read` returns.

    See `Mxfp4Experts`. Reading them raises `BadModelFile` if a weight may be infinite or NaN.
    """

    def checked() -> Mxfp4Experts:
        values, scales = read()
        if int(scales.max()) > LARGEST_SCALE:
            raise BadModelFile(f"tensor {name}: expected finite weights, found a scale above 2^125")
        return Mxfp4Experts(values, scales)

    return PackedExperts(Scheme(Mxfp4Experts, _BLOCK), checked)


def of_ggml_blocks(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Return the elements [n, groups, 16] and scales [n, groups] of rows of GGUF's blocks.

    `rows` uint8 [n, row bytes]. A byte of a block has elements i and i + 16, one here has two
    neighbors.
    """
    blocks = rows.reshape(len(rows), -1, _GGML_BYTES)
    packed = blocks[:, :, 1:]
    low, high = packed & np.uint8(15), packed >> np.uint8(4)
    pairs = [half[..., ::2] | half[..., 1::2] << np.uint8(4) for half in (low, high)]
    return np.concatenate(pairs, 2), np.ascontiguousarray(blocks[:, :, 0])


def to_int8(blocks: Bytes, scales: Bytes) -> Int8Groups:
    """Convert one matrix, blocks [rows, groups, 16] and scales [rows, groups], without rounding."""
    doubled = (2 * _E2M1).astype(np.int8).view(np.uint8) + np.uint8(_INT8_CENTER)
    values = np.empty((len(blocks), blocks.shape[1] * _BLOCK), np.uint8)
    pairs = blocks.reshape(len(blocks), -1)
    values[:, ::2], values[:, 1::2] = doubled[pairs & 15], doubled[pairs >> 4]
    scale = as_float32(scales, "F8_E8M0") / np.float32(2)
    return Int8Groups(values, scale, np.full(scale.shape, _INT8_CENTER, np.float32))
