"""What a token mixer with a state reads: its weights, states and ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.state_cache import LayerStates


@dataclass(frozen=True)
class MixerWeights:
    """The weights of a `StateMixer` in one layer; matrices are [out, in].

    `conv` [channels, kernel] is depthwise, empty for mixers without one. `decay` holds logarithms
    of decays (lightning attention: slopes), `step_bias` the
    biases of steps, `skip` the weights of a mixer's input in its output, fp32 for each head; `norm`
    is fp32 for the elements of one head or of all. Those after it are fp32: Mamba's projections
    of its input, and of that to steps, and norms of the three parts in between; Kimi's second
    matrices of steps and of output gates.
    """

    project_in: LinearWeight
    project_in_bias: Tensor | None
    conv: Tensor
    conv_bias: Tensor | None
    project_out: LinearWeight
    project_out_bias: Tensor | None
    decay: Tensor | None = None
    step_bias: Tensor | None = None
    skip: Tensor | None = None
    norm: Tensor | None = None
    project_x: Tensor | None = None
    project_step: Tensor | None = None
    step_norm: Tensor | None = None
    b_norm: Tensor | None = None
    c_norm: Tensor | None = None
    project_gate: Tensor | None = None

    @property
    def matrices(self) -> list[LinearWeight]:
        return [self.project_in, self.project_out]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors besides the matrices."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]


@dataclass(frozen=True)
class MixerInputs:
    """What a layer's mixer reads besides the projections of its input; it also writes the states.

    `activate` computes the activation of its convolution. `ranks` divide its heads or channels.
    """

    weights: MixerWeights
    states: LayerStates
    activate: Callable[[Tensor], Tensor]
    ranks: Communicator
