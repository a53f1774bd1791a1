"""A mixture of experts: each token goes through the few FFNs its router chooses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.weights.architectures.config import ModelConfig


@dataclass(frozen=True)
class Expert:
    """An FFN: tensors as in `LayerWeights`, but its matrices may be views of transposed ones."""

    gate_up: LinearWeight
    down: LinearWeight
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        biases = [self.gate_up_bias, self.down_bias]
        present = [bias for bias in biases if bias is not None]
        return [*self.gate_up.tensors, *self.down.tensors, *present]


@dataclass(frozen=True)
class Experts:
    """The FFNs of one layer: `router` [num_experts, hidden] and its bias choose among `each`.

    All tokens go through `shared`; `shared_router` [1, hidden] says how much of it counts.
    """

    router: Tensor
    each: Sequence[Expert]
    router_bias: Tensor | None = None
    shared: Expert | None = None
    shared_router: Tensor | None = None

    @property
    def all(self) -> list[Expert]:
        """Each, and the one that is shared."""
        return [*self.each, *([] if self.shared is None else [self.shared])]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        routers = [self.router, self.router_bias, self.shared_router]
        inside = [tensor for expert in self.all for tensor in expert.tensors]
        return [tensor for tensor in routers if tensor is not None] + inside


class MlpOps(Protocol):
    """The operations of an FFN, as `decoder.Ops` describes them."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor: ...
    def gate(self, gate_up: Tensor) -> Tensor: ...


def ffn(x: Tensor, expert: Expert, ops: MlpOps) -> Tensor:
    """What an expert makes of x [n, hidden]: same shape and dtype."""
    inner = ops.gate(ops.linear(x, expert.gate_up, expert.gate_up_bias))
    return ops.linear(inner, expert.down, expert.down_bias)


def shared_part(x: Tensor, experts: Experts, ops: MlpOps) -> Tensor | None:
    """What the shared expert adds for x [n, hidden], in fp32, if there is one."""
    if experts.shared is None or experts.shared_router is None:
        return None
    share = linear(x, experts.shared_router).float().sigmoid()
    return ffn(x, experts.shared, ops).float() * share


def mixture(x: Tensor, experts: Experts, config: ModelConfig, ops: MlpOps) -> Tensor:
    """What the chosen experts make of x [n, hidden], weighted and added up: fp32, same shape.

    A token's shares are the softmax over all experts (Shazeer et al., 2017, arXiv:1701.06538,
    without its noise), the largest `experts_per_token` of them, in a tie those of the lowest
    experts. Normalized, they are the softmax over those chosen. Each expert's tokens are
    computed together.
    """
    scores = linear(x, experts.router, experts.router_bias).float()
    shares, chosen = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    shares, chosen = (t[:, : config.experts_per_token] for t in (shares, chosen))
    if config.normalized_experts:
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        made = ffn(x[rows], experts.each[expert], ops)
        out.index_add_(0, rows, made.float() * shares[rows, places].unsqueeze(1))
    shared = shared_part(x, experts, ops)
    return out if shared is None else out.add_(shared)
