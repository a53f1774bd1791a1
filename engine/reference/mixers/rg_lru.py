"""RG-LRU: a linear recurrence whose decays depend on the input.

De et al., 2024 (arXiv:2402.19427), section 2.4. With r and i the sigmoids of projections of x:
a = exp(−8 · softplus(Λ) · r) and h ← a·h + √(1 − a²)·i·x; the first token has 1 instead of the
root.
"""

import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.reference.mixers.mamba import selective_scan
from swiftchat.engine.reference.mixers.short_conv import Activation, causal_conv
from swiftchat.weights.architectures.parts.mixers import RgLru

_SHARPNESS = 8.0


def rg_lru(
    inputs: Tensor,
    states: tuple[Tensor, ...],
    mixer: RgLru,
    weights: MixerWeights,
    activation: Activation,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Mix projections [num_seqs, n, 2 * width]: x and output gates.

    Returns fp32 [num_seqs, n, width] and the states after them: the last tokens of the convolution,
    h fp32 [num_seqs, width], and 1 [num_seqs, 1], at first 0. Λ is `decay`.
    """
    decay, to_step, step_bias = weights.decay, weights.project_step, weights.step_bias
    to_gate, gate_bias = weights.project_gate, weights.gate_bias
    assert decay is not None and to_step is not None and step_bias is not None
    assert to_gate is not None and gate_bias is not None
    x, y = inputs.float().chunk(2, -1)
    x, last = causal_conv(x, states[0], weights.conv, weights.conv_bias)
    step = _SHARPNESS * F.softplus(decay) * _by_block(x, to_step, step_bias).sigmoid()
    root = (1 - (-2 * step).exp()).sqrt()
    root[:, :1] = root[:, :1].where(states[2].unsqueeze(1) > 0, 1.0)
    scaled = x * _by_block(x, to_gate, gate_bias).sigmoid() * root
    ones, minus_one = x.new_ones(*x.shape[:2], 1), x.new_full((mixer.width, 1), -1.0)
    out, after = selective_scan(scaled, ones, ones, step, minus_one, states[1].unsqueeze(2))
    return out * activation(y), (last, after.squeeze(2), states[2].new_ones(states[2].shape))


def _by_block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply each block of x [num_seqs, n, width] by a matrix [blocks, in, out]; add a bias."""
    blocks = x.reshape(*x.shape[:2], len(weight), -1).transpose(1, 2)
    return (blocks @ weight).transpose(1, 2).reshape(x.shape) + bias.reshape(-1)
