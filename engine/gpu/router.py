"""The choice of experts in kernels, without the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.moe.route import RouterWorkspace, Routing, route, router
from swiftchat.engine.gpu.linear.plain import GpuPlainWeight, LinearKernels
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


@dataclass(frozen=True)
class LayerRouter:
    """What the kernels read to choose a layer's experts; but for the matrices all is fp32.

    The last of `rows` is the shared expert's own router, if the kernel computes its gate.
    """

    weight: GpuPlainWeight
    rows: Tensor
    bias: Tensor | None
    correction: Tensor | None
    scales: Tensor | None

    @classmethod
    def of(
        cls, experts: Experts, kernels: LinearKernels, shared_router: Tensor | None = None
    ) -> "LayerRouter":
        """Return the router of a layer; with `shared_router` it computes that gate, too."""
        rows, correction = experts.router, experts.correction
        return cls(
            GpuPlainWeight(rows, kernels),
            rows if shared_router is None else torch.cat([rows, shared_router]),
            None if experts.router_bias is None else experts.router_bias.float(),
            None if correction is None else correction.float().view(-1).contiguous(),
            None if experts.scales is None else experts.scales.float(),
        )


class RouterKernels:
    """Chooses the experts of tokens, for all layers of a model."""

    def __init__(self, kernels: LinearKernels, config: ModelConfig) -> None:
        self._gpu = kernels.gpu
        self._routing, self._workspace = Routing(), None
        if (moe := config.moe) is not None and routing_fits(moe.router):
            self._routing = _routing_of(moe.router)
            self._workspace = RouterWorkspace(kernels.gpu, MAX_GEMV_ROWS, moe.num_experts)

    def choose(self, own: LayerRouter, x: Tensor, ids: Tensor, weights: Tensor) -> None:
        """Write the experts of rows x and their weights, both [n, experts_per_token]."""
        route(
            self._gpu,
            own.weight.matmul_fp32(x),
            ids,
            weights,
            self._routing,
            bias=own.bias,
            correction=own.correction,
            scales=own.scales,
        )

    def choose_of_norm(
        self,
        own: LayerRouter,
        x: Tensor,
        norm: Norm,
        normed: Tensor,
        ids: Tensor,
        weights: Tensor,
        expert_norm: Tensor | None,
        num_shared: int = 0,
    ) -> None:
        """Write the norm of the stream x and the experts that it chooses, as `router` does."""
        assert self._workspace is not None  # see `routing_fits`
        router(
            self._gpu,
            x,
            norm,
            own.rows,
            normed,
            ids,
            weights,
            self._routing,
            self._workspace,
            bias=own.bias,
            correction=own.correction,
            scales=own.scales,
            expert_norm=expert_norm,
            num_shared=num_shared,
            shared_gate=len(own.rows) > len(own.weight.tensor),
        )


def routing_fits(router: RouterConfig) -> bool:
    """Return whether the kernel chooses and weighs experts as this router does."""
    return (
        router.scores in ("softmax", "sigmoid")
        and not router.softcap
        and router.best_of_group in (1, 2)
    )


def _routing_of(router: RouterConfig) -> Routing:
    """Return the kernel's parameters of a router."""
    return Routing(
        sigmoid=router.scores == "sigmoid",
        by_logits=router.by_logits,
        num_groups=router.groups,
        top_groups=router.top_groups,
        best_of_group=router.best_of_group,
        normalized=router.normalized,
        eps=router.eps,
        scale=router.scale,
    )
