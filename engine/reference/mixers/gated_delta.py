"""Gated DeltaNet: linear attention whose state forgets and is corrected by each token.

Yang et al., 2024 (arXiv:2412.06464). With S the state, g ≤ 0 a logarithmic decay, β in (0, 1), k a
key of length 1 and v a value: S ← exp(g)·S, then S ← S + k (β (v − Sᵀ k))ᵀ; the output is Sᵀ q.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.scan import CHUNK_TOKENS, pairwise_decays
from swiftchat.engine.reference.mixers.short_conv import causal_conv
from swiftchat.weights.architectures.parts.mixers import GatedDelta

_EPS = 1e-6  # of the lengths of keys and queries


def gated_delta(
    tokens: Tensor, states: LayerStates, mixer: GatedDelta, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Mix projections [num_seqs, n, …]: queries, keys, values, output gates, β and steps.

    Returns fp32 [num_seqs, n, num_value_heads * value_dim] and the states after them: the last
    tokens of the convolution, and S fp32 [num_seqs, num_value_heads, key_dim, value_dim].
    The decay of a step is exp(−exp(`decay`) · step).
    """
    weights = inputs.weights
    decay, step_bias, norm = weights.decay, weights.step_bias, weights.norm
    assert decay is not None and step_bias is not None and norm is not None
    num_seqs, n = tokens.shape[:2]
    heads, keys = mixer.num_value_heads, mixer.num_key_heads * mixer.key_dim
    sizes = [2 * keys + mixer.value_width, mixer.value_width, heads, heads]
    qkv, z, beta, step = torch.split(tokens.float(), sizes, -1)
    mixed, last = causal_conv(qkv, states[0], weights.conv, None)
    q, k, v = torch.split(inputs.activate(mixed), [keys, keys, mixer.value_width], -1)
    repeats = mixer.num_value_heads // mixer.num_key_heads
    q, k = (unit_heads(x.reshape(num_seqs, n, -1, mixer.key_dim), repeats) for x in (q, k))
    v = v.reshape(num_seqs, n, heads, -1).transpose(1, 2)
    g = -decay.exp() * F.softplus(step + step_bias)
    out, after = delta_rule(
        q * mixer.key_dim**-0.5,
        k,
        v,
        g.transpose(1, 2),
        (beta.sigmoid() * mixer.beta_scale).transpose(1, 2),
        states[1],
    )
    out = out.transpose(1, 2)
    out = F.rms_norm(out, (mixer.value_dim,), norm, mixer.norm_eps)
    return out.reshape(z.shape) * F.silu(z), (last, after)


def unit_heads(x: Tensor, repeats: int = 1) -> Tensor:
    """Scale each vector of x [num_seqs, n, num_key_heads, key_dim] to length 1.

    [num_seqs, num_value_heads, n, key_dim]: `repeats` neighboring value heads share a key head.
    """
    x = x * (x.square().sum(-1, keepdim=True) + _EPS).rsqrt()
    return x.repeat_interleave(repeats, 2).transpose(1, 2)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule to q and k [num_seqs, heads, n, key_dim] and v, in fp32.

    `g` and `beta` are [num_seqs, heads, n]. Returns the outputs in the shape of v and the state
    after the last token. In a chunk, the corrections U of all tokens solve a triangular system,
    the WY form of Yang et al., 2024 (arXiv:2406.06484):
    u_i = β_i (v_i − exp(γ_i) S₀ᵀ k_i − Σ_{j<i} exp(γ_i − γ_j) (k_i·k_j) u_j), γ the sums of g.
    """
    outputs = []
    for start in range(0, q.shape[2], CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        queries, keys, weights = q[:, :, some], k[:, :, some], beta[:, :, some, None]
        total = g[:, :, some].cumsum(2)
        decays = pairwise_decays(total)
        system = (weights * (keys @ keys.transpose(2, 3)) * decays).tril_(-1)
        from_start = total.exp().unsqueeze(3)
        wanted = weights * (v[:, :, some] - from_start * (keys @ state))
        updates = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        inside = (queries @ keys.transpose(2, 3) * decays) @ updates
        outputs.append(from_start * (queries @ state) + inside)
        to_end = (total[..., -1:] - total).exp().unsqueeze(3)
        state = state * total[..., -1, None, None].exp() + (keys * to_end).transpose(2, 3) @ updates
    return torch.cat(outputs, 2), state
