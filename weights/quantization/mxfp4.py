"""MXFP4: floats of 4 bits (e2m1), 32 of them under one power of two (e8m0).

Layout (GPT-OSS's published weights), for the experts' matrices: `…_blocks` U8 [experts, rows,
groups, 16], two numbers a byte, low half first, and `…_scales` U8 [experts, rows, groups].
weight[e, r, 32·g + i] = e2m1(i-th number)·2^(scale[e, r, g] − 127); the plain model keeps rows
and columns exchanged: [experts, columns, rows].
Formats: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1.
"""

import numpy as np
import numpy.typing as npt

from swiftchat.weights.quantization.quantized_tensor import Floats, PackedTensor, Source
from swiftchat.weights.quantization.settings import Settings

__all__ = ["tensors"]

_BLOCK = 32
_INERT = {"quant_method", "modules_to_not_convert", "dequantize"}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e8m0(exponents: npt.NDArray[np.uint8]) -> Floats:
    """2^(byte − 127); 255 is not a number."""
    powers = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers).astype(np.float32)


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `…_blocks` and `…_scales` as one tensor named without the ending."""
    settings.refuse_others(_INERT)
    return {name: _tensor(source, name) for name in source.ending("_blocks")}


def _tensor(source: Source, name: str) -> PackedTensor:
    blocks = f"{name}_blocks"
    experts, rows, groups, _ = source.shape(blocks, ("U8",), 4)
    source.require(blocks, ("U8",), (experts, rows, groups, _BLOCK // 2))
    shape = (experts, groups * _BLOCK, rows)
    scales = source.require(f"{name}_scales", ("U8",), (experts, rows, groups))

    def decode(start: int, stop: int) -> Floats:
        result = np.empty((stop - start, *shape[1:]), np.float32)
        for expert, matrix in zip(range(start, stop), result, strict=True):
            # Bytes are exchanged before they become floats, of which there are eight times more.
            packed = np.ascontiguousarray(source.read(blocks)[expert].reshape(rows, -1).T)
            pairs = matrix.reshape(-1, 2, rows)
            pairs[:, 0] = _E2M1[packed & np.uint8(15)]
            pairs[:, 1] = _E2M1[packed >> np.uint8(4)]
            with np.errstate(over="ignore"):
                by_group = matrix.reshape(groups, _BLOCK, rows)
                by_group *= _e8m0(source.read(scales)[expert]).T[:, None]
        return result

    return PackedTensor("mxfp4", shape, {"blocks": blocks, "scales": scales}, decode)
