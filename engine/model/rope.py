"""Rotary position embedding: the table of angles (Su et al., 2021, arXiv:2104.09864)."""

import math

import torch

from swiftchat.weights.architectures.config import RopeConfig


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, num_positions: int | None = None
) -> torch.Tensor:
    """The `head_dim / 2` angular speeds in radians per position, in fp64 as shape [head_dim / 2].

    `linear` scaling divides every speed by the factor (position interpolation). `llama3` divides
    the slow ones, keeps the fast ones and blends between, by how often a pair turns within the
    original context (Meta's Llama 3.1 reference code). `yarn` blends likewise, but by the place
    of a pair among the others (arXiv:2309.00071). `longrope` divides each speed by a number of
    its own, of the longer list when there are more positions than in the original context. Pairs
    that are not rotated have speed 0 and come last. In two dimensions the second half of the
    pairs has the speeds of the first.
    """
    rotated = rope.rotary_dim or head_dim
    exponents = torch.arange(0, rotated, 2, dtype=torch.float64) / rotated
    speeds = _scaled(rope, rope.theta**-exponents, rotated, num_positions or 0)
    if rope.two_dimensional:
        return speeds.repeat(2)
    return torch.nn.functional.pad(speeds, (0, (head_dim - rotated) // 2))


def _scaled(
    rope: RopeConfig, speeds: torch.Tensor, rotated: int, num_positions: int
) -> torch.Tensor:
    if rope.scaling == "linear":
        return speeds / rope.factor
    if rope.scaling == "llama3":
        turns = rope.original_context_tokens * speeds / (2 * math.pi)
        span = rope.high_freq_factor - rope.low_freq_factor
        keep = ((turns - rope.low_freq_factor) / span).clamp(0.0, 1.0)
        return speeds * (keep + (1.0 - keep) / rope.factor)
    if rope.scaling == "yarn":
        first, last = (_pair_turning(rope, n, rotated) for n in (rope.fast_turns, rope.slow_turns))
        if rope.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotated - 1)
        width = last - first if last != first else 0.001
        pairs = torch.arange(rotated // 2, dtype=torch.float64)
        slow = ((pairs - first) / width).clamp(0.0, 1.0)
        return speeds * (slow / rope.factor + 1.0 - slow)
    if rope.scaling == "longrope":
        long = num_positions > rope.original_context_tokens
        divisors = rope.long_divisors if long else rope.short_divisors
        return speeds / torch.tensor(divisors, dtype=torch.float64)
    return speeds


def _pair_turning(rope: RopeConfig, turns: float, rotated: int) -> float:
    """The place, a fraction, of the pair that turns so often within the original context."""
    wave_tokens = rope.original_context_tokens / (turns * 2 * math.pi)
    return rotated * math.log(wave_tokens) / (2 * math.log(rope.theta))


def cos_sin_table(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> torch.Tensor:
    """Cosines and sines of every position's angles, as fp32 [num_positions, head_dim].

    Row p is `cos(p·f)` in the first half and `sin(p·f)` in the second, times `rope.magnitude`
    where a pair is rotated at all.
    The angles are computed in fp64: in fp32 the product loses up to 0.004 rad at position 10^5.
    """
    speeds = inverse_frequencies(rope, head_dim, num_positions).to(device)
    table = torch.empty(num_positions, head_dim, device=device)
    # In parts: fp64 temporaries of a whole table for 128k positions would take 200 MB.
    for first in range(0, num_positions, 8192):
        end = min(first + 8192, num_positions)
        angles = torch.outer(torch.arange(first, end, dtype=torch.float64, device=device), speeds)
        table[first:end] = torch.cat([angles.cos(), angles.sin()], 1)
    if rope.magnitude != 1.0:
        table.view(num_positions, 2, -1)[..., : (rope.rotary_dim or head_dim) // 2] *= (
            rope.magnitude
        )
    return table
