"""The decoder's elementwise operations as torch calls, the same on every device."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight

# Constants of xIELU, which files have as well.
_XIELU_BETA = 0.5
_XIELU_EPS = -1e-6


class Elementwise:
    """The part of `Ops` that `TorchOps` and `CudaOps` share."""

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        x *= scale

    def clamp_(self, x: Tensor, limit: float) -> None:
        x.clamp_(-limit, limit)

    def xielu(self, x: Tensor, scales: Tensor) -> Tensor:
        wide = x.float()
        positive, negative = F.softplus(scales)
        below = (torch.expm1(wide.clamp(max=_XIELU_EPS)) - wide) * (negative + _XIELU_BETA)
        out = torch.where(wide > 0, positive * wide * wide, below) + _XIELU_BETA * wide
        return out.to(x.dtype)

    def sparsify_(self, gate_up: Tensor, deviations: float) -> None:
        gate = gate_up.chunk(2, dim=-1)[0]
        std, mean = torch.std_mean(gate.float(), dim=-1, keepdim=True, correction=0)
        gate.copy_((gate - (mean + deviations * std)).relu_())

    def norm_inside(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.float(), x.shape[1:], weight.float(), eps).to(x.dtype)

    def gate(self, x: Tensor, scores: Tensor, *, softplus: bool = False) -> Tensor:
        return x.mul_(F.softplus(scores.float()) if softplus else scores.sigmoid())

    def split_gate(self, qkv: Tensor, width: int) -> tuple[Tensor, Tensor]:
        queries, gates, rest = qkv.tensor_split((width, 2 * width), 1)
        return torch.cat([queries, rest], 1), gates

    def add_(self, x: Tensor, delta: Tensor) -> None:
        x += delta

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def replace_(self, x: Tensor, normed: Tensor, scale: float) -> None:
        x.copy_(normed)
        x *= scale

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def copy(self, x: Tensor, scale: float) -> Tensor:
        return x.float() * scale

    def add_positions_(self, plan: Any, x: Tensor, table: Tensor) -> None:
        x += table[plan.positions].float()

    def logits(self, x: Tensor, lm_head: LinearWeight, bias: Tensor | None) -> Tensor:
        logits = lm_head.matmul_fp32(x)
        return logits if bias is None else logits.add_(bias)

    def softcap_(self, logits: Tensor, cap: float) -> Tensor:
        return logits.div_(cap).tanh_().mul_(cap)
