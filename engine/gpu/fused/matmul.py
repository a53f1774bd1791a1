"""Pending matmuls: what follows them is the epilogue of their kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import M_TILE, linear_fits
from swiftchat.cuda.ops.linear.linear import (
    LinearInput,
    Norm,
    RopeCache,
    Workspace,
    linear,
    linear_act_and_mul,
    linear_residual,
    linear_rope_cache,
    linear_send,
)
from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.cuda.peer_memory import PeerBuffer
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.engine.gpu.fused.norm import Normed
from swiftchat.engine.gpu.fused.pending import Pending, computed
from swiftchat.engine.linear.adapted import AdaptedWeight, Site
from swiftchat.engine.linear.merged import split_bias
from swiftchat.engine.linear.weight import LinearWeight


@dataclass(frozen=True)
class MatmulKernels:
    """The GPU, the workspace of its matmuls, and the adapters of a step's rows."""

    gpu: Gpu
    workspace: Workspace
    deltas: FusedDeltas | None


class Matmul(Pending):
    """x · weightᵀ + bias and the changes by adapters, [n, rows of the weight].

    x may be a pending norm: the kernel computes it.
    """

    def __init__(
        self,
        kernels: MatmulKernels,
        x: Tensor,
        weight: LinearWeight,
        bias: Tensor | None,
        *,
        fp32: bool = False,
    ) -> None:
        """With `fp32`, results have this dtype instead of the weight's."""
        self._computed, self._kernels, self._x, self._bias = None, kernels, x, bias
        self._fp32 = fp32
        self._site: Site | None = None
        if isinstance(weight, AdaptedWeight):
            self._site = weight.site
            weight = weight.weight
        self.weight: LinearWeight = weight

    @property
    def _gpu(self) -> Gpu:
        return self._kernels.gpu

    @property
    def num_rows(self) -> int:
        return len(self._source)

    @property
    def _normed(self) -> Normed | None:
        """The input if its norm is still pending."""
        return self._x if isinstance(self._x, Normed) and self._x.is_pending else None

    @property
    def _source(self) -> Tensor:
        """The input, before its norm if that is pending."""
        return computed(self._x) if self._normed is None else self._normed.rows

    @property
    def matrices(self) -> Sequence[Matrix]:
        return self.weight.kernel_matrices

    def fits(self, *, pair_span: int = M_TILE, splittable: bool = False) -> bool:
        """Return whether the kernel computes all parts of the weight."""
        n, matrices = self.num_rows, self.matrices
        return len(matrices) > 0 and all(
            linear_fits(self._gpu, n, matrix, splittable=splittable, pair_span=pair_span)
            for matrix in matrices
        )

    def compute(self) -> Tensor:
        if self.fits():
            dtype = torch.float32 if self._fp32 else self.weight.dtype
            shape = self.num_rows, self.weight.shape[0]
            out = torch.empty(shape, dtype=dtype, device=self._gpu.device)
            self.write(out)
            return out
        x = computed(self._x)
        bias = self._with_changes(x, None, self._bias)
        if self._fp32 or (bias is not None and bias.dim() == 2):
            out = self.weight.matmul_fp32(x) if self._fp32 else self.weight.matmul(x)
            return out if bias is None else out.add_(bias)
        return self.weight.matmul(x, bias)

    def write(self, out: Tensor) -> None:
        """Write the results to `out`, of the weight's dtype or fp32: a kernel for each part."""
        inputs, parts = self._fused_inputs(), self.matrices
        sizes = [len(part) for part in parts]
        # The kernel writes a contiguous tensor; columns of `out` are contiguous for one row only,
        # and must begin at a multiple of 16 bytes.
        is_aligned = all(size * out.itemsize % 16 == 0 for size in sizes[:-1])
        needs_copy = len(parts) > 1 and (len(out) > 1 or not is_aligned)
        if needs_copy:
            outs = [out.new_empty(len(out), size) for size in sizes]
        else:
            outs = list(torch.split(out, sizes, 1))
        biases = split_bias(inputs.bias, parts)
        for part, part_out, bias in zip(parts, outs, biases, strict=True):
            self._launch(linear, replace(inputs, bias=bias), part, part_out)
        if needs_copy:
            torch.cat(outs, 1, out=out)

    @property
    def adds(self) -> bool:
        return self.is_pending and len(self.matrices) == 1 and self.fits(splittable=True)

    def add_to(self, total: Tensor) -> None:
        inputs, (matrix,) = self._inputs(computed(self._x), None, splittable=True), self.matrices
        self._launch(linear_residual, inputs, matrix, total)

    def send(self, buffer: PeerBuffer) -> None:
        """Write the results to the peer buffers of all ranks, if this `adds` or `fits`."""
        if self._normed is not None and self.fits():
            inputs = self._fused_inputs()
        else:
            inputs = self._inputs(computed(self._x), None, splittable=True)
        (matrix,) = self.matrices
        self._launch(linear_send, inputs, matrix, buffer)

    def act_and_mul(self, activation: str) -> Tensor | None:
        """Return activation(gate) * up of the results; None: the kernel does not compute it."""
        num_outputs = self.weight.shape[0]
        if not (self.is_pending and len(self.matrices) == 1 and self.fits(pair_span=num_outputs)):
            return None
        inputs, (matrix,) = self._fused_inputs(pair_span=num_outputs), self.matrices
        shape = self.num_rows, num_outputs // 2
        out = torch.empty(shape, dtype=self.weight.dtype, device=self._gpu.device)
        self._launch(linear_act_and_mul, inputs, matrix, out, activation=activation)
        return out

    def rotates(self, rope: RopeCache) -> bool:
        """Return whether `rotate` computes the heads."""
        head_dim = rope.cache.shape[3]
        has_whole_heads = all(len(part) % head_dim == 0 for part in self.matrices)
        return self.is_pending and has_whole_heads and self.fits(pair_span=head_dim)

    def rotate(self, rope: RopeCache) -> Tensor:
        """Return rotated queries [n, num_heads, head_dim]; store keys and values in the cache."""
        head_dim, first = rope.cache.shape[3], 0
        inputs, parts = self._fused_inputs(pair_span=head_dim), self.matrices
        shape = self.num_rows, rope.num_heads, head_dim
        queries = torch.empty(shape, dtype=self.weight.dtype, device=self._gpu.device)
        for part, bias in zip(parts, split_bias(inputs.bias, parts), strict=True):
            own, options = replace(inputs, bias=bias), {"rope": rope, "first_head": first}
            self._launch(linear_rope_cache, own, part, queries, **options)
            first += len(part) // head_dim
        return queries

    def _launch(
        self,
        kernel: Callable[..., None],
        inputs: LinearInput,
        matrix: Matrix,
        out: Tensor | PeerBuffer,
        **options: Any,
    ) -> None:
        """Launch a kernel that multiplies the inputs with a part of the weight."""
        kernel(self._gpu, inputs, matrix, out, self._kernels.workspace, **options)

    def _fused_inputs(self, *, pair_span: int = M_TILE) -> LinearInput:
        """Return the inputs of a kernel that computes the norm of x if that is pending."""
        norm = None if self._normed is None else self._normed.rms
        return self._inputs(self._source, norm, pair_span=pair_span)

    def _inputs(
        self,
        x: Tensor,
        norm: Norm | None,
        *,
        splittable: bool = False,
        pair_span: int = M_TILE,
    ) -> LinearInput:
        deltas, site = self._kernels.deltas, self._site
        if deltas is not None and site is not None:
            changes = deltas.changes(
                site, len(x), self.matrices, splittable=splittable, pair_span=pair_span
            )
            if changes is not None:
                return LinearInput(x, norm, self._bias, changes)
        return LinearInput(x, norm, self._with_changes(x, norm, self._bias))

    def _with_changes(self, x: Tensor, norm: Norm | None, bias: Tensor | None) -> Tensor | None:
        """Return the bias and the changes by adapters for x, computed by kernels of their own."""
        deltas, site = self._kernels.deltas, self._site
        if deltas is None or site is None:
            return bias
        return deltas.bias(x, site, self.weight.shape[0], bias, norm)
