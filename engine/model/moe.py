"""Mixture of experts: each token goes through the few expert MLPs that its router chooses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.engine.linear.half_gemm import linear
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.routing import route
from swiftchat.weights.architectures.config import ModelConfig


@dataclass(frozen=True)
class Expert:
    """The weights of one MLP, as in `LayerWeights`; its matrices may be transposed views."""

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
    """The experts of one layer: `router` [num_experts, hidden_size] and its bias choose in `each`.

    The rows behind these are the router's for identity experts.

    All tokens go through `shared`, weighted by `shared_router` [1, hidden_size] if there is one.
    `correction` fp32 [num_experts] is the router's for the choice. `project_in` and `project_out`
    convert between the model's width and that of the experts. With `scales` [num_experts] the
    weight of a chosen expert is multiplied by its own.
    """

    router: Tensor
    each: Sequence[Expert]
    router_bias: Tensor | None = None
    shared: Expert | None = None
    shared_router: Tensor | None = None
    correction: Tensor | None = None
    project_in: LinearWeight | None = None
    project_out: LinearWeight | None = None
    scales: Tensor | None = None

    @property
    def all(self) -> list[Expert]:
        """The routed experts and the shared one."""
        return [*self.each, *([] if self.shared is None else [self.shared])]

    @property
    def tensors(self) -> list[Tensor]:
        routers = [self.router, self.router_bias, self.shared_router, self.correction, self.scales]
        in_experts = [tensor for expert in self.all for tensor in expert.tensors]
        projections = [w for w in (self.project_in, self.project_out) if w is not None]
        in_experts += [tensor for weight in projections for tensor in weight.tensors]
        return [tensor for tensor in routers if tensor is not None] + in_experts


@dataclass(frozen=True)
class ExpertNorms:
    """The RMSNorms of a layer with an MLP and experts, [hidden_size] each.

    `dense_out` is of the MLP's output, `experts` and `experts_out` of the experts' input and
    output, `router` of the router's input.
    """

    dense_out: Tensor
    experts: Tensor
    experts_out: Tensor
    router: Tensor


class MlpOps(Protocol):
    """The operations of an MLP, as in `Ops`."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor: ...
    def act_and_mul(self, gate_up: Tensor) -> Tensor: ...


def shared_expert(x: Tensor, experts: Experts, ops: MlpOps) -> Tensor | None:
    """Return the weighted output of the shared expert, fp32 [n, hidden_size], if there is one."""
    if experts.shared is None:
        return None
    if experts.shared_router is None:
        return _mlp(x, experts.shared, ops).float()
    weight = linear(x, experts.shared_router).float().sigmoid()
    return _mlp(x, experts.shared, ops).float() * weight


def moe(
    x: Tensor,
    experts: Experts,
    config: ModelConfig,
    ops: MlpOps,
    router_input: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of the chosen experts' outputs for x: fp32 [n, hidden_size].

    The router reads `router_input`, if given, instead of x. Each expert computes all its tokens
    together.
    """
    seen = x if router_input is None else router_input
    scores = linear(seen, experts.router, experts.router_bias).float()
    weights, chosen = route(scores, experts.correction, config.experts_per_token, config.router)
    if experts.scales is not None:
        weights = weights * experts.scales.float()[chosen]
    hidden = x
    if experts.project_in is not None:
        x = ops.linear(x, experts.project_in, None)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if config.identity_experts:
        own = weights.masked_fill(chosen < len(experts.each), 0.0).sum(1, keepdim=True)
        out += x.float() * (own * config.identity_scale)
    for expert, choices in _by_expert(chosen, len(experts.each)):
        rows = choices // chosen.shape[1]
        weight, inputs = weights.flatten()[choices].unsqueeze(1), x[rows]
        if config.router.on_input:
            inputs, weight = (inputs * weight).to(x.dtype), torch.ones_like(weight)
        out.index_add_(0, rows, _mlp(inputs, experts.each[expert], ops).float() * weight)
    if experts.project_out is not None:
        out = ops.linear(out.to(x.dtype), experts.project_out, None).float()
    shared = shared_expert(hidden, experts, ops)
    return out if shared is None else out.add_(shared)


def _by_expert(chosen: Tensor, num_experts: int) -> Iterator[tuple[int, Tensor]]:
    """Yield each chosen expert with the indices of its choices in `chosen` [n, k], flattened.

    Without those that compute nothing, from number `num_experts` on.

    On a GPU the host waits once: for the number of choices of each expert.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=num_experts).tolist()
    for expert, choices in enumerate(torch.split(order, counts)[:num_experts]):
        if len(choices):
            yield expert, choices


def _mlp(x: Tensor, expert: Expert, ops: MlpOps) -> Tensor:
    """Return the output of one expert for x [n, hidden_size], in the same shape and dtype."""
    inner = ops.act_and_mul(ops.linear(x, expert.gate_up, expert.gate_up_bias))
    return ops.linear(inner, expert.down, expert.down_bias)
