"""A tensor's numbers in the dtype it is written in: rounded to the nearest, ties to even."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile

__all__ = ["WIRE_NAMES", "Floats", "rounded", "to_bfloat16"]

Floats = npt.NDArray[np.float32]

# As safetensors spells them.
WIRE_NAMES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def rounded(
    name: str, shape: tuple[int, ...], dtype: str, values: Iterable[Floats]
) -> npt.NDArray[Any]:
    """The tensor of `shape` whose numbers `values` yields in order (bfloat16 as uint16).

    Raises `BadModelFile` naming the tensor for a number that is not finite, that does not fit
    `dtype`, and for too many or too few numbers.
    """
    result = np.empty(math.prod(shape), _STORED[dtype])
    at = 0
    for chunk in values:
        if at + len(chunk) > len(result):
            raise BadModelFile(f"tensor {name}: more than the {len(result)} numbers expected")
        if not np.isfinite(chunk).all():
            raise BadModelFile(f"tensor {name} holds numbers that are not finite")
        stored = _CASTS[dtype](chunk)
        if stored is None:
            raise BadModelFile(
                f"tensor {name} holds numbers too large for {dtype}", "use --dtype bfloat16"
            )
        result[at : at + len(chunk)] = stored
        at += len(chunk)
    if at != len(result):
        raise BadModelFile(f"tensor {name}: {at} numbers instead of {len(result)}")
    return result.reshape(shape)


def to_bfloat16(numbers: Floats) -> npt.NDArray[np.uint16] | None:
    """The upper halves of the float32 bits, rounded to nearest even; None on overflow."""
    bits = numbers.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint32)
    upper &= np.uint32(1)
    upper += np.uint32(0x7FFF)
    upper += bits
    upper >>= np.uint32(16)
    stored = upper.astype(np.uint16)
    infinite = (stored & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    return None if infinite.any() else stored


def _to_float16(numbers: Floats) -> npt.NDArray[np.float16] | None:
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float16)
    return stored if np.isfinite(stored).all() else None


_STORED = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}
_CASTS: Mapping[str, Callable[[Floats], npt.NDArray[Any] | None]] = {
    "bfloat16": to_bfloat16,
    "float16": _to_float16,
    "float32": lambda numbers: numbers,
}
