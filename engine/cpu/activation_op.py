"""The operation of the activation of an MLP, for the native kernels."""

from types import MappingProxyType

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import Activation
from swiftchat.weights.architectures.parts import mlp

ACTIVATIONS = MappingProxyType(
    {
        "silu": Activation.SILU,
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELU_TANH,
        "gelu_sigmoid": Activation.GELU_SIGMOID,
        "relu2": Activation.RELU2,
    }
)


def act_and_mul_op(activation: mlp.Activation) -> native.ActAndMulOp:
    """Return the operation of an activation, without its buffers."""
    return native.ActAndMulOp(
        activation=ACTIVATIONS[activation.kind],
        gated=activation.gated,
        gate_limit=(activation.limit or 0.0) if activation.gated else 0.0,
        gate_scale=activation.scale if activation.scale != 1.0 else 0.0,
    )
