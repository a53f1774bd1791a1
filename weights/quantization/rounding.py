"""Conversion of float32 elements to the dtype of a written tensor, to nearest, ties to even."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Floats

# The dtype names of safetensors.
WIRE_NAMES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
DTYPE_NAMES: Mapping[str, str] = {wire: dtype for dtype, wire in WIRE_NAMES.items()}


def convert_dtype(
    name: str, shape: tuple[int, ...], dtype: str, chunks: Iterable[Floats]
) -> npt.NDArray[Any]:
    """Return the tensor of `shape` in `dtype` (bfloat16 as uint16) from flat chunks in order.

    Raises `BadModelFile` with the tensor's name for an element that is not finite or too large
    for `dtype`, and for too many or too few elements.
    """
    result = np.empty(math.prod(shape), _STORED[dtype])
    filled = 0
    for chunk in chunks:
        if filled + len(chunk) > len(result):
            raise BadModelFile(f"tensor {name}: more than the expected {len(result)} elements")
        if not np.isfinite(chunk).all():
            raise BadModelFile(f"tensor {name} has elements that are not finite")
        stored = _CASTS[dtype](chunk)
        if stored is None:
            raise BadModelFile(
                f"tensor {name} has elements too large for {dtype}", "use --dtype bfloat16"
            )
        result[filled : filled + len(chunk)] = stored
        filled += len(chunk)
    if filled != len(result):
        raise BadModelFile(f"tensor {name}: {filled} elements instead of {len(result)}")
    return result.reshape(shape)


def to_bfloat16(x: Floats) -> npt.NDArray[np.uint16] | None:
    """Round to bfloat16 bits, to nearest, ties to even; None on overflow."""
    bits = x.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint32)
    upper &= np.uint32(1)
    upper += np.uint32(0x7FFF)
    upper += bits
    upper >>= np.uint32(16)
    stored = upper.astype(np.uint16)
    infinite = (stored & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    return None if infinite.any() else stored


def _to_float16(x: Floats) -> npt.NDArray[np.float16] | None:
    with np.errstate(over="ignore"):
        stored = x.astype(np.float16)
    return stored if np.isfinite(stored).all() else None


_STORED = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}
_CASTS: Mapping[str, Callable[[Floats], npt.NDArray[Any] | None]] = {
    "bfloat16": to_bfloat16,
    "float16": _to_float16,
    "float32": lambda x: x,
}
