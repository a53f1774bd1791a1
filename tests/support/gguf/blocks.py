"""Random ggml blocks with scales of ordinary size."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES

# Offsets of a block's half-precision scales, in bytes; others have one at the start.
_SCALE_OFFSETS = {
    **dict.fromkeys(("Q4_1", "Q4_K", "Q5_1", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_blocks(type_name: str, rows: int, columns: int, seed: int = 5) -> npt.NDArray[np.uint8]:
    """Return rows of random blocks, the first with scales 0, subnormal and negative."""
    rng, kind = np.random.default_rng(seed), BLOCK_TYPES[type_name]
    count = rows * columns // kind.block_elements
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 128, count)
        return blocks.reshape(rows, -1)
    for at in _SCALE_OFFSETS.get(type_name, (0,)):
        scales = rng.normal(0, 0.1, count).astype(np.float16)
        scales[:3] = [0, 6e-8, -0.25][:count]
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def set_scales(blocks: npt.NDArray[np.uint8], type_name: str, values: Sequence[float]) -> None:
    """Set all scales of the first blocks of the first rows, one value each, in place.

    MXFP4 has no infinities: NaN stands for all values that are not finite.
    """
    if type_name == "MXFP4":
        finite = np.isfinite(values)
        exponents = np.frexp(np.where(finite, values, 1))[1] + 126
        blocks[: len(values), 0] = np.where(finite, exponents, 255)
        return
    for at in _SCALE_OFFSETS.get(type_name, (0,)):
        stored = np.array(values, np.float16).view(np.uint8).reshape(-1, 2)
        blocks[: len(values), at : at + 2] = stored
