"""The norms of the decoder, as torch calls, in fp32."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.layers import Norm
from swiftchat.weights.architectures.parts.model import ModelConfig


class RmsNorms:
    """The RMSNorms of a model's layers: Zhang and Sennrich, 2019 (arXiv:1910.07467).

    A row x of `width` elements becomes weight·sqrt(width)·x / sqrt(Σx² + width·eps). Terms that do
    not depend on x are computed once: for one row torch's own norm takes twice as many calls and
    twice as long.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._offset = float(config.norm.unit_offset)
        self._eps_length = torch.tensor(
            math.sqrt(config.hidden_size * config.norm.eps), device=device
        )
        self._scaled_weights: dict[Tensor, Tensor] = {}

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Scale each fp32 row of x [n, hidden_size] to root mean square 1, times weight."""
        scaled_weight = self._scaled_weights.get(weight)
        if scaled_weight is None:
            scaled_weight = (weight.float() + self._offset).mul_(math.sqrt(len(weight)))
            self._scaled_weights[weight] = scaled_weight
        lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / torch.hypot(lengths, self._eps_length)).mul_(scaled_weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalize each fp32 row of x [n, width] to mean 0 and variance 1, times weight, plus bias.

    Ba et al., 2016 (arXiv:1607.06450).
    """
    shift = None if bias is None else bias.float()
    return F.layer_norm(x, weight.shape, weight.float(), shift, eps)


def norm_heads_(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, attention: Attention, norm: Norm
) -> None:
    """Normalize the queries and keys of qkv [n, (heads + 2 * kv_heads) * head_dim], in place.

    Each head by itself with weights [head_dim], or with norms over the "width" all heads together
    with the weights of all. A layer without keys of its own has only queries.
    """
    normalize = F.rms_norm if norm.kind == "rms" else F.layer_norm
    by_width = attention.head_norms is not None and attention.head_norms.over == "width"
    start = 0
    for weight, num_heads in ((q_norm, attention.num_heads), (k_norm, attention.num_kv_heads)):
        part = qkv[:, start : start + num_heads * attention.head_dim]
        if not part.shape[1]:
            return
        width = part.shape[1] if by_width else attention.head_dim
        rows = part.float().reshape(len(part), -1, width)
        scale = weight.float().view(-1, width) + float(norm.unit_offset)
        part.copy_((normalize(rows, (width,), eps=norm.eps) * scale).view(part.shape))
        start += part.shape[1]


def norm_values_(qkv: Tensor, attention: Attention, eps: float) -> None:
    """Normalize each head of the values of qkv, as in `norm_heads_`, without weights, in place."""
    head_dim = attention.head_dim
    values = qkv[:, (attention.num_heads + attention.num_kv_heads) * head_dim :]
    if values.shape[1]:
        heads = values.float().reshape(len(values), -1, head_dim)
        normed = F.rms_norm(heads, (head_dim,), eps=eps)
        values.copy_(normed.view(values.shape))


def norm_widths_(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, norm: Norm, ranks: Communicator
) -> None:
    """`norm_heads_` over the heads of all ranks together, in place.

    The mean square of all heads is the mean of the ranks' mean squares: ranks have the same number
    of heads, and each head is on the same number of ranks.
    """
    offset = float(norm.unit_offset)
    k_start, k_end = len(q_norm), len(q_norm) + len(k_norm)
    q, k = qkv[:, :k_start], qkv[:, k_start:k_end]
    mean_squares = torch.stack([part.float().square().mean(1) for part in (q, k)])
    scales = (ranks.all_reduce(mean_squares) / ranks.size + norm.eps).rsqrt()
    for part, scale, weight in zip((q, k), scales, (q_norm, k_norm), strict=True):
        part.copy_(part.float() * scale.unsqueeze(1) * (weight.float() + offset))
