"""Mixture of experts: each token goes through the few expert MLPs that its router chooses."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight


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
