"""Random inputs of Mamba's recurrence, and the recurrence in fp64."""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.ops.mixers.selective import SelectiveInputs, SelectiveWeights
from tests.support.kernels.case import Inputs

# Channels and elements of a state: Mamba's and Falcon-Mamba's state, and odd sizes.
SHAPES = [(192, 16), (40, 4), (65, 28), (33, 64)]


class Selective:
    """Inputs of `n` tokens; b, c and the gates are columns of wider rows."""

    def __init__(self, n: int, width: int, state_size: int, dtype: torch.dtype) -> None:
        make = self.make = Inputs(n + width, dtype)
        small = make.normal(n, 5 + 2 * state_size, dtype=torch.float32)
        _, b, c = torch.split(small, [5, state_size, state_size], 1)
        x, steps = (make.normal(n, width, dtype=torch.float32) for _ in range(2))
        gates = make.normal(n, 2 * width)[:, width:]
        self.inputs = SelectiveInputs(x, steps, b, c, gates)
        decay = make.normal(width, state_size, dtype=torch.float32)
        step_bias, skip = (make.normal(width, dtype=torch.float32) for _ in range(2))
        self.weights = SelectiveWeights(decay, step_bias, skip)

    def reference(self, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output of a token and the state after it, [width, state_size], in fp64."""
        inputs, weights = self.inputs, self.weights
        x, b, c, gate = (
            each[token].double() for each in (inputs.x, inputs.b, inputs.c, inputs.gates)
        )
        delta = F.softplus(inputs.steps[token].double() + weights.step_bias.double())
        forget = (-weights.decay.double().exp() * delta.unsqueeze(1)).exp()
        state = forget * state + (delta * x).unsqueeze(1) * b
        return (state @ c + weights.skip.double() * x) * F.silu(gate), state
