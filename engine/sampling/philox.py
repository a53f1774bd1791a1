"""Counter-based random numbers: the same on every device and rank, for any order of evaluation."""

_PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_PHILOX_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Return four 32-bit words from a 128-bit counter and a 64-bit key, in ten rounds.

    Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _PHILOX_MULTIPLIERS[0] * c0, _PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _MASK, (k1 + _PHILOX_WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) for the token at `position` of a generation with a 64-bit seed."""
    words = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return ((words[0] << 21) | (words[1] >> 11)) * 2.0**-53
