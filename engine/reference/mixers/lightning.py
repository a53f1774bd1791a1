"""Lightning attention: linear attention with a fixed decay for each head.

Qin et al., 2024 (arXiv:2401.04658). With S the state, s > 0 the slope of the head, k and v a key
and a value: S ← exp(−s)·S + k vᵀ, and the output is Sᵀ q.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.model.state_cache import LayerStates
from swiftchat.engine.reference.mixers.mamba2 import scan
from swiftchat.weights.architectures.parts.lightning import Lightning


def lightning(
    tokens: Tensor, states: LayerStates, mixer: Lightning, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """Mix projections [num_seqs, n, 4 * width]: queries, keys, values and output gates.

    Returns fp32 [num_seqs, n, width] and the state after them, fp32 [num_seqs, num_heads, head_dim,
    head_dim], values by keys. Slopes are `decay`.
    """
    weights = inputs.weights
    slopes, norm = weights.decay, weights.norm
    assert slopes is not None and norm is not None
    num_seqs, n = tokens.shape[:2]
    qkv, z = torch.split(tokens.float(), [3 * mixer.width, mixer.width], -1)
    heads = (num_seqs, n, mixer.num_heads, mixer.head_dim)
    q, k, v = (x.reshape(heads).transpose(1, 2) for x in inputs.activate(qkv).chunk(3, -1))
    out, after = scan(v, k, q, -slopes.view(-1, 1).expand(num_seqs, -1, n), states[0])
    out = out.transpose(1, 2).reshape(z.shape)
    return F.rms_norm(out, norm.shape, norm, mixer.norm_eps) * z.sigmoid(), (after,)
