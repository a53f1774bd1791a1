"""Parts of a fused decode step: matmuls of several parts, mixers with a state, experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.norm import add_norm
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import Norm, linear, linear_act_and_mul, linear_residual
from swiftchat.cuda.ops.linear.row_changes import RowChanges
from swiftchat.engine.comm.communicator import SingleRank
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.merged import split_bias
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Expert
from swiftchat.engine.model.per_layer import PerLayerBranch
from swiftchat.engine.model.weights import LayerWeights


@dataclass(frozen=True)
class Tuned:
    """What a matmul adds to its results: a bias, and the changes by adapters."""

    bias: Tensor | None
    changes: RowChanges | None = None


def write_linear(
    ops: CudaOps, x: Tensor, weight: LinearWeight, tuned: Tuned, out: Tensor, norm: Norm
) -> None:
    """Write norm(x) · weightᵀ and what is added to it to `out`: a kernel for each part."""
    parts = weight.kernel_matrices
    sizes = [len(part) for part in parts]
    # The kernel writes a contiguous tensor; columns of `out` are contiguous for one row only, and
    # must begin at a multiple of 16 bytes.
    is_aligned = all(size * out.itemsize % 16 == 0 for size in sizes[:-1])
    needs_copy = len(parts) > 1 and (len(x) > 1 or not is_aligned)
    if needs_copy:
        outs = [out.new_empty(len(x), size) for size in sizes]
    else:
        outs = list(torch.split(out, sizes, 1))
    for part, part_out, part_bias in zip(parts, outs, split_bias(tuned.bias, parts), strict=True):
        linear(
            *(ops.gpu, x, part, part_out, ops.linear_workspace),
            bias=part_bias,
            norm=norm,
            changes=tuned.changes,
        )
    if needs_copy:
        torch.cat(outs, 1, out=out)


def mixer_fits(ops: CudaOps, n: int, weights: MixerWeights) -> bool:
    """Return whether `mix` computes n rows, and `linear_residual` the projection after it."""
    into, out = weights.project_in.kernel_matrices, weights.project_out.kernel_matrices
    return (
        len(into) > 0
        and len(out) == 1
        and all(linear_fits(ops.gpu, n, matrix) for matrix in into)
        and linear_fits(ops.gpu, n, out[0], splittable=True)
    )


def mix(
    ops: CudaOps, batch: DeviceBatch, layer: int, x: Tensor, weights: MixerWeights, norm: Norm
) -> Tensor:
    """Return the mixed norm of the stream x fp32 [n, hidden_size], before its projection.

    For one rank.
    """
    project = weights.project_in
    projected = torch.empty(len(x), project.shape[0], dtype=project.dtype, device=x.device)
    write_linear(ops, x, project, Tuned(weights.project_in_bias), projected, norm)
    return ops.mixers.mix(batch, layer, projected, weights, SingleRank())


def attend_to_latents(
    ops: CudaOps,
    batch: DeviceBatch,
    i: int,
    x: Tensor,
    layer: LayerWeights,
    norm: Norm,
    kv: LayerKV,
) -> Tensor:
    """Return the latent attention of layer i for the normed stream x, before its projection."""
    n, latent = len(x), layer.latent
    assert latent is not None
    projected = latent.kv_b.new_empty(n, layer.qkv.shape[0])
    write_linear(ops, x, layer.qkv, Tuned(layer.qkv_bias), projected, norm)
    assert batch.decode is not None
    places = batch.positions, batch.slot_mapping
    return ops.decode_latents(i, projected, kv, latent, *places, batch.decode)


def add_experts(
    ops: CudaOps, i: int, x: Tensor, layer: LayerWeights, norm: Norm, activation: str
) -> None:
    """Add the weighted sum of the experts of layer i for the normed stream x to x in place."""
    experts = layer.experts
    assert experts is not None and norm.weight is not None
    shared, inner = experts.shared, None
    if not ops.experts.adds(i, experts, len(x)):
        ops.add_(x, ops.moe(i, ops.norm_(x, None, norm.weight, None), experts))
        return
    if shared is not None and not ops.experts.adds_shared(i, experts):
        if experts.shared_router is not None or not _fits(ops, len(x), shared):
            ops.add_(x, ops.moe(i, ops.norm_(x, None, norm.weight, None), experts))
            return
        # The shared expert reads the stream before anything is added to it.
        inner = norm.weight.new_empty(len(x), shared.down.shape[1])
        (gate_up,) = shared.gate_up.kernel_matrices
        linear_act_and_mul(
            *(ops.gpu, x, gate_up, inner, ops.linear_workspace),
            norm=norm,
            activation=activation,
            bias=shared.gate_up_bias,
        )
    ops.experts.add(i, x, norm, experts)
    if inner is not None:
        assert shared is not None
        (down,) = shared.down.kernel_matrices
        linear_residual(ops.gpu, inner, down, x, ops.linear_workspace, bias=shared.down_bias)


def per_layer_fits(gpu: Gpu, n: int, branch: PerLayerBranch | None) -> bool:
    """Return whether the fused matmuls compute n rows of the branch; there may be none."""
    if branch is None:
        return True
    gate, out = branch.gate.kernel_matrices, branch.out.kernel_matrices
    return (
        len(gate) == len(out) == 1
        and linear_fits(gpu, n, gate[0])
        and linear_fits(gpu, n, out[0], splittable=True)
    )


def per_layer_inner(ops: CudaOps, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
    """Return the input [n, width] of the branch's last matrix, given the rounded stream x."""
    gate, (matrix,) = torch.empty_like(own), branch.gate.kernel_matrices
    linear(ops.gpu, x, matrix, gate, ops.linear_workspace)
    return ops.per_layer.gated(gate, own)


@dataclass(frozen=True)
class BranchSums:
    """fp32 [max_rows, hidden_size]: outputs of branches before their norms; zeros between uses."""

    mlp: Tensor
    experts: Tensor
    both: Tensor


def add_mlp_and_experts(
    ops: CudaOps,
    i: int,
    x: Tensor,
    layer: LayerWeights,
    inner: Tensor,
    sums: BranchSums,
    router_norm: Norm,
    *,
    scale: Tensor | None,
    rounded: Tensor | None,
) -> None:
    """Add what the MLP and the experts of layer i give together to the stream x in place.

    `inner` is the input of the MLP's last matrix. The stream is then multiplied by `scale`, and
    written to `rounded`.
    """
    n, gpu, experts, norms = len(x), ops.gpu, layer.experts, layer.expert_norms
    assert experts is not None and norms is not None and layer.mlp_out_norm is not None
    mlp, sparse, both = sums.mlp[:n], sums.experts[:n], sums.both[:n]
    (down,) = layer.down.kernel_matrices
    linear_residual(gpu, inner, down, mlp, ops.linear_workspace, bias=layer.down_bias)
    if ops.experts.adds(i, experts, n):
        ops.experts.add(i, x, router_norm, experts, norms.experts, sparse)
    else:
        inputs, seen = (
            ops.norm_(x, None, weight, None) for weight in (norms.experts, norms.router)
        )
        ops.add_(sparse, ops.moe(i, inputs, experts, seen))
    eps, offset = router_norm.eps, router_norm.weight_offset
    for delta, weight in ((mlp, norms.dense_out), (sparse, norms.experts_out)):
        add_norm(gpu, both, delta, weight, eps, weight_offset=offset, zero_delta=True)
    add_norm(
        *(gpu, x, both, layer.mlp_out_norm, eps),
        weight_offset=offset,
        zero_delta=True,
        scale=scale,
        copy=rounded,
    )


def _fits(ops: CudaOps, n: int, expert: Expert) -> bool:
    """Return whether the fused matmuls compute n rows of an MLP."""
    gate_up, down = expert.gate_up.kernel_matrices, expert.down.kernel_matrices
    return (
        len(gate_up) == len(down) == 1
        and linear_fits(ops.gpu, n, gate_up[0], pair_span=len(gate_up[0]))
        and linear_fits(ops.gpu, n, down[0], splittable=True)
    )
