"""The choice of experts: `kernels/moe/route.cu` and `router.cu`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import Norm

MAX_EXPERTS = 4096
_THREADS = 128
_ROUTER_THREADS, _ROUTER_ROWS = 256, 8


@dataclass(frozen=True)
class Routing:
    """How `route` converts a token's logits to the ids and weights of its experts.

    Scores are the softmax over all experts, or with `sigmoid` that of each. With `num_groups` > 1
    only the `top_groups` groups with the largest sums of their `best_of_group` (1 or 2) best scores
    are candidates. With `by_logits` the logits decide. With `normalized` the weights are divided by
    their sum plus `eps`. They are multiplied by `scale`.
    """

    sigmoid: bool = False
    by_logits: bool = False
    num_groups: int = 1
    top_groups: int = 1
    best_of_group: int = 2
    normalized: bool = False
    eps: float = 0.0
    scale: float = 1.0

    def check(self, num_experts: int, chosen: int) -> None:
        """Raise `ValueError` if the kernels do not choose so many of these experts."""
        if not 1 <= chosen <= num_experts <= MAX_EXPERTS:
            raise ValueError(f"{chosen} of {num_experts} experts; at most {MAX_EXPERTS} experts")
        groups = self.num_groups
        is_whole = 1 <= groups <= _THREADS and num_experts % groups == 0
        if not is_whole or not 1 <= self.top_groups <= groups:
            raise ValueError(f"{self.top_groups} of {groups} groups of {num_experts} experts")
        if self.best_of_group not in (1, 2):
            raise ValueError(f"best_of_group must be 1 or 2, not {self.best_of_group}")

    def arguments(self) -> dict[str, Any]:
        return {
            "sigmoid": self.sigmoid,
            "by_logits": self.by_logits,
            "num_groups": self.num_groups,
            "top_groups": self.top_groups,
            "best_of_group": self.best_of_group,
            "normalized": self.normalized,
            "eps": self.eps,
            "scale": self.scale,
        }


def route(
    gpu: Gpu,
    logits: Tensor,
    ids: Tensor,
    weights: Tensor,
    routing: Routing,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Write each token's best experts, given logits [n, num_experts], and their routing weights.

    Floats are fp32, `ids` int32; ids and weights are [n, experts_per_token]. `bias` [num_experts]
    is added to the logits, `correction` [num_experts] to the scores for the choice only. The weight
    of each expert is multiplied by its own of `scales` [num_experts]. Of equal scores the lowest
    expert comes first.
    """
    (n, num_experts), chosen = logits.shape, ids.shape[1]
    routing.check(num_experts, chosen)
    gpu.kernel("route")(
        n,
        _THREADS,
        shared_bytes=_choice_bytes(num_experts, chosen, routing),
        num_bytes=logits.nbytes,
        logits=logits,
        bias=bias,
        correction=correction,
        expert_scales=scales,
        ids=ids,
        weights=weights,
        **routing.arguments(),
    )


def _choice_bytes(num_experts: int, chosen: int, routing: Routing) -> int:
    """Return the bytes of `Choice` in choose.cuh."""
    return 4 * (5 * num_experts + routing.num_groups + 2 * chosen + 1)


class RouterWorkspace:
    """Memory that launches of `router` share: logits of up to `max_rows` tokens, and counters."""

    def __init__(self, gpu: Gpu, max_rows: int, num_experts: int) -> None:
        self.logits = torch.empty(max_rows * (num_experts + 1), device=gpu.device)
        self.counters = torch.zeros(max_rows, dtype=torch.int64, device=gpu.device)


def router(
    gpu: Gpu,
    x: Tensor,
    norm: Norm,
    matrix: Tensor,
    normed: Tensor,
    ids: Tensor,
    weights: Tensor,
    routing: Routing,
    workspace: RouterWorkspace,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
    scales: Tensor | None = None,
    expert_norm: Tensor | None = None,
    num_shared: int = 0,
    shared_gate: bool = False,
) -> None:
    """Write the norm of the stream x fp32 [n, hidden_size], and choose experts by its logits.

    `normed` is T [n, hidden_size], `matrix` T [num_experts, hidden_size]. With `expert_norm`
    T [hidden_size] `normed` is the norm with these weights instead. Every token's last
    `num_shared` experts are num_experts, num_experts + 1, …, with the weight 1; with `shared_gate`
    `matrix` has one more row, and the weight is the sigmoid of that row's logit. The rest is as for
    `route`.
    """
    (n, hidden_size), num_experts = x.shape, len(matrix) - shared_gate
    chosen = ids.shape[1] - num_shared
    routing.check(num_experts, chosen)
    if hidden_size * matrix.itemsize % 16:
        raise ValueError(f"the kernel does not take rows of {hidden_size} elements")
    if n > len(workspace.counters) or n * len(matrix) > len(workspace.logits):
        raise ValueError(f"the workspace is too small for {n} rows and {num_experts} experts")
    row_bytes = hidden_size * matrix.itemsize
    gpu.kernel("router", DTYPE=matrix.dtype)(
        (-(-len(matrix) // _ROUTER_ROWS), n),
        _ROUTER_THREADS,
        shared_bytes=max(row_bytes, _choice_bytes(num_experts, chosen, routing)),
        num_bytes=matrix.nbytes,
        x=x,
        norm_weight=norm.weight,
        expert_norm=expert_norm,
        matrix=matrix,
        bias=bias,
        correction=correction,
        expert_scales=scales,
        normed=normed,
        logits=workspace.logits,
        counters=workspace.counters,
        ids=ids,
        weights=weights,
        norm_eps=norm.eps,
        weight_offset=norm.weight_offset,
        num_shared=num_shared,
        shared_gate=shared_gate,
        num_experts=num_experts,
        experts_per_token=chosen,
        **routing.arguments(),
    )
