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


def cos_sin_table(rope: RopeConfig, head_dim: int, num_positions: int,
                  device: torch.device) -> torch.Tensor:  # fmt: skip
    """Cosines and sines of every position's angles, as fp32 [num_positions, head_dim].

    Row p is `cos(p·f)` in the first half and `sin(p·f)` in the second.
    The angles are computed in fp64: in fp32 the product loses up to 0.004 rad at position 10^5.
    """
    speeds = inverse_frequencies(rope, head_dim).to(device)
    table = torch.empty(num_positions, head_dim, device=device)
    # In parts: fp64 temporaries of a whole table for 128k positions would take 200 MB.
    for first in range(0, num_positions, 8192):
        end = min(first + 8192, num_positions)
        angles = torch.outer(torch.arange(first, end, dtype=torch.float64, device=device), speeds)
        table[first:end] = torch.cat([angles.cos(), angles.sin()], 1)
    return table
