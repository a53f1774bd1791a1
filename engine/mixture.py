"""A mixture of experts: each token goes through the few FFNs its router chooses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.weights.config import ModelConfig


@dataclass(frozen=True)
class Experts:
    """The FFNs of one layer: `router` [num_experts, hidden]; `gate_up` and `down` by expert."""

    router: Tensor
    gate_up: Sequence[Tensor]
    down: Sequence[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [self.router, *self.gate_up, *self.down]


def mixture(x: Tensor, experts: Experts, config: ModelConfig,
            ffn: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:  # fmt: skip
    """What the chosen experts make of x [n, hidden], weighted and added up: fp32, same shape.

    A token's shares are the softmax over all experts (Shazeer et al., 2017, arXiv:1701.06538,
    without its noise), the largest `experts_per_token` of them, in a tie those of the lowest
    experts. Each expert's tokens are computed together: `ffn(rows, gate_up, down)`.
    """
    scores = torch.nn.functional.linear(x, experts.router).float()
    shares, chosen = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    shares, chosen = (t[:, : config.experts_per_token] for t in (shares, chosen))
    if config.normalized_experts:
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        made = ffn(x[rows], experts.gate_up[expert], experts.down[expert])
        out.index_add_(0, rows, made.float() * shares[rows, places].unsqueeze(1))
    return out
