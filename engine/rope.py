"""Rotary position embedding: the table of angles (Su et al., 2021, arXiv:2104.09864)."""

import math

import torch

from swiftchat.weights.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """The `head_dim / 2` angular speeds in radians per position, in fp64 as shape [head_dim / 2].

    `linear` scaling divides every speed by the factor (position interpolation). `llama3` divides
    the slow ones, keeps the fast ones and blends between, by how often a pair turns within the
    original context (Meta's Llama 3.1 reference code).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    speeds = rope.theta**-exponents
    if rope.scaling == "linear":
        return speeds / rope.factor
    if rope.scaling == "llama3":
        turns = rope.original_context_tokens * speeds / (2 * math.pi)
        span = rope.high_freq_factor - rope.low_freq_factor
        keep = ((turns - rope.low_freq_factor) / span).clamp(0.0, 1.0)
        return speeds * (keep + (1.0 - keep) / rope.factor)
    return speeds


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> torch.Tensor:
    """Cosines and sines for the half-split layout, as fp32 [num_positions, 2, head_dim].

    Row p is `cos(p·f)` and `sin(p·f)`, each repeated for both halves of a head, the first half
    of the sines negated: rotating x is then `x * cos + swap_halves(x) * sin`.
    The angles are computed in fp64: in fp32 the product loses up to 0.004 rad at position 10^5.
    """
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1).float()
