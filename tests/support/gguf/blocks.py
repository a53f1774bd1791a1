"""Random ggml blocks with scales of ordinary size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES

# Offsets of a block's half-precision scales, in bytes; others have one at the start.
_SCALE_OFFSETS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q4_1", "Q4_K", "Q5_1", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("IQ1_M", "NVFP4", "Q8_K"), ()),
}


def random_blocks(type_name: str, rows: int, columns: int, seed: int = 5) -> npt.NDArray[np.uint8]:
    """Return rows of random blocks, the first with scales 0, subnormal and negative."""
    rng, kind = np.random.default_rng(seed), BLOCK_TYPES[type_name]
    count = rows * columns // kind.block_elements
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 128, count)
        return blocks.reshape(rows, -1)
    numbers = rng.normal(0, 0.1, (2, count))
    numbers[:, :3] = np.array([0, 6e-8, -0.25])[:count]
    if type_name in ("IQ1_M", "Q8_K"):
        _set_scales(blocks, type_name, numbers[0])
    for at, scales in zip(_SCALE_OFFSETS.get(type_name, (0,)), numbers, strict=False):
        blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def _set_scales(blocks: npt.NDArray[np.uint8], type_name: str, scales: npt.NDArray[Any]) -> None:
    """Set the scales of blocks that do not have them as halves in one place."""
    if type_name == "Q8_K":
        blocks[:, :4] = scales.astype(np.float32).view(np.uint8).reshape(-1, 4)
        return
    bits = scales.astype(np.float16).view(np.uint16)
    words = np.ascontiguousarray(blocks[:, 48:56]).view(np.uint16) & np.uint16(0x0FFF)
    words |= (bits[:, None] >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(15)) << np.uint16(12)
    blocks[:, 48:56] = words.view(np.uint8)


def set_scales(blocks: npt.NDArray[np.uint8], type_name: str, values: Sequence[float]) -> None:
    """Set all scales of the first blocks of the first rows, one value each, in place.

    MXFP4 has no infinities: NaN stands for all values that are not finite.
    """
    if type_name == "MXFP4":
        finite = np.isfinite(values)
        exponents = np.frexp(np.where(finite, values, 1))[1] + 126
        blocks[: len(values), 0] = np.where(finite, exponents, 255)
        return
    if type_name in ("IQ1_M", "Q8_K"):
        first = blocks[: len(values), : BLOCK_TYPES[type_name].block_bytes]
        _set_scales(first, type_name, np.array(values))
        return
    for at in _SCALE_OFFSETS.get(type_name, (0,)):
        stored = np.array(values, np.float16).view(np.uint8).reshape(-1, 2)
        blocks[: len(values), at : at + 2] = stored
