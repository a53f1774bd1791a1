"""The norms of the decoder, as torch calls, in fp32."""

import torch.nn.functional as F
from torch import Tensor

from swiftchat.weights.config import ModelConfig


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Scale each fp32 row of x [n, width] to root mean square 1, then by weight [width].

    Zhang and Sennrich, 2019 (arXiv:1910.07467). `offset` is added to the weight.
    """
    scale = weight.float() + offset if offset else weight
    return F.rms_norm(x, weight.shape, eps=eps).mul_(scale)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Bring each fp32 row of x [n, width] to mean 0 and variance 1, times weight, plus bias.

    Ba et al., 2016 (arXiv:1607.06450).
    """
    shift = None if bias is None else bias.float()
    return F.layer_norm(x, weight.shape, weight.float(), shift, eps)


def norm_heads_(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, config: ModelConfig) -> None:
    """Norm queries and keys in qkv [n, (heads + 2 * kv_heads) * head_dim], in place.

    Each head by itself, or for `qk_norm` "width" all together. Weights are [head_dim], the same
    for every head, or those of all heads.
    """
    normalize = F.rms_norm if config.norm == "rms" else F.layer_norm
    start = 0
    for weight, heads in ((q_norm, config.num_heads), (k_norm, config.num_kv_heads)):
        part = qkv[:, start : start + heads * config.head_dim]
        width = part.shape[1] if config.qk_norm == "width" else config.head_dim
        rows = part.float().reshape(len(part), -1, width)
        scale = weight.float().view(-1, width) + float(config.norm_unit_offset)
        part.copy_((normalize(rows, (width,), eps=config.norm_eps) * scale).view(part.shape))
        start += part.shape[1]
