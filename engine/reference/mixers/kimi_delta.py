"""Kimi Delta Attention: gated DeltaNet with a decay for each element of a key.

Kimi Team, 2025 (arXiv:2510.26692). With S the state, g ≤ 0 a vector of logarithmic decays, β in
(0, 1), k a key of length 1 and v a value: S ← diag(exp(g))·S, then S ← S + k (β (v − Sᵀ k))ᵀ; the
output is Sᵀ q.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.gated_delta import unit_heads
from swiftchat.engine.reference.mixers.short_conv import causal_conv
from swiftchat.weights.architectures.parts.mixers import KimiDelta

_CHUNK_TOKENS = 16  # of which all pairs have a decay for each element of a key


def kimi_delta(
    tokens: Tensor, states: LayerStates, mixer: KimiDelta, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Mix projections [num_seqs, n, …]: queries, keys, values, β, inputs of decays and of gates.

    Returns fp32 [num_seqs, n, width] and the states after them: the last tokens of the convolution,
    and S fp32 [num_seqs, num_heads, head_dim, head_dim]. The decay of a step is
    exp(−exp(`decay`) · softplus(step)), or exp(bound · sigmoid(exp(`decay`) · step)).
    """
    weights = inputs.weights
    decay, step_bias, norm = weights.decay, weights.step_bias, weights.norm
    assert decay is not None and step_bias is not None and norm is not None
    width, narrow, heads = mixer.width, mixer.head_dim, mixer.num_heads
    num_seqs, n = tokens.shape[:2]
    inner = width if mixer.is_plain else narrow
    sizes = [3 * width, heads, inner, inner]
    qkv, beta, step, z = torch.split(tokens.float(), sizes, -1)
    mixed, last = causal_conv(qkv, states[0], weights.conv, None)
    q, k, v = (x.reshape(num_seqs, n, heads, narrow) for x in inputs.activate(mixed).chunk(3, -1))
    if weights.project_step is not None and weights.project_gate is not None:
        step, z = step @ weights.project_step.t(), z @ weights.project_gate.t()
    step, rate = (step + step_bias).view(num_seqs, n, heads, narrow), decay.view(-1, 1).exp()
    g = -rate * F.softplus(step) if mixer.bound is None else mixer.bound * (rate * step).sigmoid()
    out, after = channel_delta_rule(
        unit_heads(q) * narrow**-0.5,
        unit_heads(k),
        v.transpose(1, 2),
        g.transpose(1, 2),
        beta.sigmoid().transpose(1, 2),
        states[1],
    )
    out = F.rms_norm(out.transpose(1, 2), (narrow,), norm, mixer.norm_eps)
    return out.reshape(num_seqs, n, width) * z.sigmoid(), (last, after)


def channel_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the delta rule to q, k and logarithmic decays g [num_seqs, heads, n, key_dim], in fp32.

    v is [num_seqs, heads, n, value_dim], `beta` [num_seqs, heads, n]. Returns the outputs in the
    shape of v and the state after the last token. The corrections of a chunk solve a triangular
    system as in `gated_delta.delta_rule`, where k_i·k_j has a decay for each element. Decays are
    exponentials of differences, which are at most 0: their quotients would overflow.
    """
    outputs = []
    for start in range(0, q.shape[2], _CHUNK_TOKENS):
        some = slice(start, start + _CHUNK_TOKENS)
        queries, keys, weights = q[:, :, some], k[:, :, some], beta[:, :, some, None]
        total = g[:, :, some].cumsum(2)
        later = torch.ones(total.shape[2], total.shape[2], dtype=torch.bool).triu_(1)
        differences = total.unsqueeze(3) - total.unsqueeze(2)
        hidden = later.to(total.device).unsqueeze(-1)
        decays = differences.masked_fill_(hidden, float("-inf")).exp_()
        decayed = decays * keys.unsqueeze(2)
        system = (weights * (keys.unsqueeze(3) * decayed).sum(-1)).tril_(-1)
        from_start = total.exp()
        wanted = weights * (v[:, :, some] - (keys * from_start) @ state)
        updates = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        inside = (queries.unsqueeze(3) * decayed).sum(-1) @ updates
        outputs.append((queries * from_start) @ state + inside)
        to_end = (total[:, :, -1:] - total).exp()
        state = (
            state * from_start[:, :, -1].unsqueeze(3) + (keys * to_end).transpose(2, 3) @ updates
        )
    return torch.cat(outputs, 2), state
