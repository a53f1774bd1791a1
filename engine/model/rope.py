"""Rotary position embedding: tables of cosines and sines (Su et al., 2021, arXiv:2104.09864)."""

import math

import torch

from swiftchat.weights.architectures.parts.rope import QueryGrowth, RopeConfig

_CHUNK = 256  # positions


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, num_positions: int | None = None
) -> torch.Tensor:
    """Return the frequencies of the pairs of a head, in radians per position: fp64 [head_dim / 2].

    `linear` scaling divides every frequency by the factor (position interpolation). `llama3`
    divides low frequencies, keeps high ones and blends between, by the number of turns within the
    original context (Meta's Llama 3.1 reference code). `yarn` blends by the index of the pair
    (arXiv:2309.00071). `longrope` divides each frequency by a divisor of its own, from the longer
    list if there are more positions than in the original context. Pairs without rotation have
    frequency 0 and come last. In two dimensions the second half repeats the first.
    """
    rotated = rope.rotary_dim or head_dim
    exponents = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
    frequencies = _scale(rope, rope.theta**-exponents, rotated, num_positions or 0)
    if rope.num_pairs is not None:
        frequencies[rope.num_pairs :] = 0.0
    if rope.two_dimensional:
        return frequencies.repeat(2)
    return torch.nn.functional.pad(frequencies, (0, (head_dim - rotated) // 2))


def _scale(
    rope: RopeConfig, frequencies: torch.Tensor, rotated: int, num_positions: int
) -> torch.Tensor:
    scaling = rope.scaling
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
        # Both factors are the same for Llama 4 Scout: then no frequency is between.
        span = max(scaling.high_freq_factor - scaling.low_freq_factor, 1e-12)
        keep = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / scaling.factor)
    if scaling.kind == "yarn":
        bounds = scaling.fast_turns, scaling.slow_turns
        first, last = (_pair_index(rope, turns, rotated) for turns in bounds)
        if scaling.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotated - 1)
        width = last - first if last != first else 0.001
        pairs = torch.arange(rotated // 2, dtype=torch.float64)
        slow = ((pairs - first) / width).clamp(0.0, 1.0)
        return frequencies * (slow / scaling.factor + 1.0 - slow)
    if scaling.kind == "longrope":
        is_long = num_positions > scaling.original_context_tokens
        divisors = scaling.long_divisors if is_long else scaling.short_divisors
        return frequencies / torch.tensor(divisors, dtype=torch.float64)
    return frequencies


def _pair_index(rope: RopeConfig, turns: float, rotated: int) -> float:
    """Return the fractional index of the pair with `turns` turns in the original context."""
    wave_tokens = rope.scaling.original_context_tokens / (turns * 2 * math.pi)
    return rotated * math.log(wave_tokens) / (2 * math.log(rope.theta))


def cos_sin_table(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> torch.Tensor:
    """Cosines and sines of the angles of all positions: fp32 [num_positions, head_dim].

    Row p is `cos(p·f)` in the first half and `sin(p·f)` in the second; rotated pairs are multiplied
    by `rope.magnitude`. Angles are computed in fp64: in fp32 the product is off by up to 0.004 rad
    at position 10^5.
    """
    frequencies = inverse_frequencies(rope, head_dim, num_positions).to(device)
    table = torch.empty(num_positions, head_dim, device=device)
    # An angle is the sum of that of a chunk's first position and of one within the chunk. So few
    # cosines in fp64 are left: if other programs use the cores, MKL's take up to 0.4 µs each.
    within = torch.outer(torch.arange(_CHUNK, dtype=torch.float64, device=device), frequencies)
    cos, sin = within.cos(), within.sin()
    for first in range(0, num_positions, _CHUNK):
        rows = table[first : first + _CHUNK]
        first_cos, first_sin = (first * frequencies).cos(), (first * frequencies).sin()
        both = [first_cos * cos - first_sin * sin, first_sin * cos + first_cos * sin]
        rows.copy_(torch.cat(both, 1)[: len(rows)])
    if rope.magnitude != 1.0:
        num_rotated = (rope.rotary_dim or head_dim) // 2
        table.view(num_positions, 2, -1)[..., :num_rotated] *= rope.magnitude
    return table


def query_factors(growth: QueryGrowth, positions: torch.Tensor) -> torch.Tensor:
    """Return what queries at these positions are multiplied by: fp32, in the shape of positions."""
    return 1 + growth.beta * torch.log1p(((positions + growth.shift) / growth.tokens).floor())


def query_factor_table(
    growth: QueryGrowth | None, num_positions: int, device: torch.device
) -> torch.Tensor | None:
    """Return `query_factors` of all positions, fp32 [num_positions]; None if all are 1."""
    if growth is None or num_positions + growth.shift <= growth.tokens:
        return None
    return query_factors(growth, torch.arange(num_positions, device=device))
