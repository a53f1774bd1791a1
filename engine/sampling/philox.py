"""Counter-based random numbers: the same on every device and rank, for any order of evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_PHILOX_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return four 32-bit words from a 128-bit counter and a 64-bit key, in ten rounds.

    Each is an int, or an array uint64 [n] for n counters and keys.

    Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _PHILOX_MULTIPLIERS[0] * c0, _PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _MASK, (k1 + _PHILOX_WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """Return a number in [0, 1) for the token at `position` of a generation with a 64-bit seed.

    Numbers of different streams are independent.
    """
    words = philox4x32((position & _MASK, position >> 32, stream, 0), (seed & _MASK, seed >> 32))
    return float(_fraction(words))


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Return `uniform` of each pair of a seed and a position."""
    seed, position = np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64)
    zero = np.zeros_like(seed)
    counter = (position & _MASK, position >> 32, zero, zero)
    words: Any = philox4x32(counter, (seed & _MASK, seed >> 32))
    return np.asarray(_fraction(words), dtype=np.float64)


def _fraction(words: tuple[Any, ...]) -> Any:
    """Return the first 53 bits of the words as a number in [0, 1)."""
    return ((words[0] << 21) | (words[1] >> 11)) * 2.0**-53
