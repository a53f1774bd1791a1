"""A mixture of experts as torch calls."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.engine.linear.half_gemm import linear
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.moe import Expert, Experts
from swiftchat.engine.reference.routing import route
from swiftchat.weights.architectures.parts.mlp import Moe


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
    config: Moe,
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
