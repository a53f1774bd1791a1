"""The MLP of a layer, or its experts in place of it."""

from statistics import NormalDist

from torch import Tensor

from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.weights.architectures.parts.model import ModelConfig


def mlp(i: int, layer: LayerWeights, x: Tensor, config: ModelConfig, ops: Ops) -> Tensor:
    """Return a rank's part of the output of layer i's MLP, or of its experts, for x.

    Of a layer with both, that of the MLP.
    """
    part, moe = config.layers[i].mlp, config.layers[i].moe
    if part is None:
        assert moe is not None and layer.experts is not None
        return scaled(ops.moe(i, x, layer.experts), moe.out_scale, ops)
    gate_up = ops.linear(x, layer.gate_up, layer.gate_up_bias)
    if part.sparsity:
        ops.sparsify_(gate_up, NormalDist().inv_cdf(part.sparsity))
    inner = ops.act_and_mul(gate_up) if layer.xielu is None else ops.xielu(gate_up, layer.xielu)
    if layer.mlp_inner_norm is not None:
        inner = ops.norm_inside(inner, layer.mlp_inner_norm, config.norm.eps)
    return scaled(ops.linear(inner, layer.down, layer.down_bias), part.out_scale, ops)


def scaled(out: Tensor, scale: float, ops: Ops) -> Tensor:
    """Multiply the output of a branch in place; return it."""
    if scale != 1.0:
        ops.scale_(out, scale)
    return out
