"""The decoder's elementwise operations as torch calls, the same on every device."""

from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight


class Elementwise:
    """The part of `decoder.Ops` that `TorchOps` and `CudaOps` share."""

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        x *= scale

    def clamp_(self, x: Tensor, limit: float) -> None:
        x.clamp_(-limit, limit)

    def gate(self, x: Tensor, scores: Tensor) -> Tensor:
        return x.mul_(scores.sigmoid())

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
