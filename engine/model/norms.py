"""The norms of the decoder, as torch calls, in fp32."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.weights.architectures.config import ModelConfig


class RmsNorms:
    """The RMSNorms of a model's layers: Zhang and Sennrich, 2019 (arXiv:1910.07467).

    A row x of `width` numbers becomes weight·sqrt(width)·x / sqrt(Σx² + width·eps); all that does
    not depend on x is computed once. Torch's own norm takes twice as many calls, and as long, for
    one row.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._offset = float(config.norm_unit_offset)
        self._least = torch.tensor(math.sqrt(config.hidden_size * config.norm_eps), device=device)
        self._factors: dict[Tensor, Tensor] = {}  # by their weights

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Each fp32 row of x [n, hidden_size] at root mean square 1, times weight [hidden_size]."""
        factors = self._factors.get(weight)
        if factors is None:
            factors = (weight.float() + self._offset).mul_(math.sqrt(len(weight)))
            self._factors[weight] = factors
        lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / torch.hypot(lengths, self._least)).mul_(factors)


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


def norm_widths_(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, config: ModelConfig, ranks: Communicator
) -> None:
    """`norm_heads_` over all heads together, of which each of the ranks has some, in place.

    Their squares' mean is that of the ranks' means: all have equally many heads, and each head
    is on equally many of them.
    """
    offset = float(config.norm_unit_offset)
    k_start, k_end = len(q_norm), len(q_norm) + len(k_norm)
    q, k = qkv[:, :k_start], qkv[:, k_start:k_end]
    own = torch.stack([part.float().square().mean(1) for part in (q, k)])
    scales = (ranks.all_reduce(own) / ranks.size + config.norm_eps).rsqrt()
    for part, scale, weight in zip((q, k), scales, (q_norm, k_norm), strict=True):
        part.copy_(part.float() * scale.unsqueeze(1) * (weight.float() + offset))
