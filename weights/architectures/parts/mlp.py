"""The MLP of a layer, and its mixture of experts."""

from dataclasses import dataclass

from swiftchat.weights.architectures.parts.router import RouterConfig


@dataclass(frozen=True)
class Activation:
    """What comes between the first and the last matrix of an MLP or expert."""

    kind: str
    """The function's name: "silu", "gelu", "relu2", …."""
    gated: bool = True
    """The function of a gate multiplies the up rows."""
    interleaved: bool = False
    """Gate and up rows alternate in the file."""
    limit: float | None = None
    """Gate and up are clamped to it, and 1 is added to up."""
    scale: float = 1.0
    """The factor of the gate before the function."""


@dataclass(frozen=True)
class Mlp:
    """An MLP: gate and up, an activation, down."""

    intermediate_size: int
    activation: Activation
    bias: bool = False
    sparsity: float = 0.0
    """The share of gates that become 0 if they are normally distributed."""
    out_scale: float = 1.0
    """The factor of the output."""


@dataclass(frozen=True)
class Moe:
    """A mixture of experts: each token uses some of them."""

    num_experts: int
    experts_per_token: int
    expert_size: int
    """The intermediate size of an expert."""
    activation: Activation
    router: RouterConfig
    bias: bool = False
    """Router and experts have biases."""
    shared_size: int = 0
    """The intermediate size of an expert for all tokens; 0: there is none."""
    shared_gate: bool = False
    """Its output is multiplied by the sigmoid of a projection."""
    out_scale: float = 1.0
    """The factor of the sum of all experts."""
    latent_size: int | None = None
    """The experts read and write a projection of this width."""
    identity_experts: int = 0
    """Behind the experts the router may choose these, whose output is their input."""
    identity_scale: float = 1.0
    """The factor of that output."""
