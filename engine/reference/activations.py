"""Activation functions of MLPs by torch's operators."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.weights.architectures.parts.mlp import Activation

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square_(),
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        # Another approximation of GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
        "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    }
)


def act_and_mul(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return the input of an MLP's last matrix, as `Ops.act_and_mul`."""
    if not activation.gated:
        return ACTIVATIONS[activation.kind](gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    if activation.limit is not None:
        gate, up = _clamp(gate, up, activation.limit)
    if activation.scale != 1.0:
        gate = gate * activation.scale
    return ACTIVATIONS[activation.kind](gate).mul_(up)


def _clamp(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Clamp the gate to at most `limit` and up to ±`limit`, and add one to up.

    As in the SwiGLU of OpenAI's gpt-oss reference code.
    """
    return gate.clamp(max=limit), up.clamp(-limit, limit).add_(1)
