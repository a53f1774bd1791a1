"""Embeddings of a token for each layer (Gemma 4), by the project's kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftchat.cuda.ops.layers.act_and_mul import act_and_mul
from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.ops.layers.norm import add_norm, norm
from swiftchat.engine.gpu.linear.plain import GpuPlainWeight, LinearKernels
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.weights.architectures.parts.model import ModelConfig

_ALIGNED = 8  # elements


class PerLayerKernels:
    """The embeddings for each layer, and what the layers compute of them, on one GPU."""

    def __init__(self, kernels: LinearKernels, config: ModelConfig, norm_offset: float) -> None:
        self._kernels, self._config, self._norm_offset = kernels, config, norm_offset

    def embeddings(self, ids: Tensor, x: Tensor, table: PerLayerTable) -> Sequence[Tensor]:
        """Return the embeddings of `ids` int32 [n] for each layer, as `per_layer_embeddings`."""
        gpu, dtype = self._kernels.gpu, table.project.dtype
        n, width, columns = len(x), len(table.norm), table.embed.shape[1]
        if table.embed.shape[0] < self._config.vocab_size:
            ids = ids.where(ids < table.embed.shape[0], 0)
        own_scale = float(torch.tensor(width**0.5, dtype=dtype))  # models are trained with it
        total = torch.empty(n, columns, device=x.device)
        (matrix,) = table.embed.kernel_matrices
        embed(gpu, ids, matrix, total, scale=own_scale * 2**-0.5)
        projected = GpuPlainWeight(table.project, self._kernels).matmul_fp32(x.to(dtype))
        # The projection's scale, the root of 1 / hidden_size, changes only what eps is relative to.
        eps = self._config.norm.eps * x.shape[1]
        normed = torch.empty(n * columns // width, width, dtype=dtype, device=x.device)
        norm(gpu, projected.view(normed.shape), table.norm, eps, normed)
        total.add_(normed.view(total.shape), alpha=2**-0.5)
        # Each layer's part begins at a multiple of 16 bytes, as kernels require.
        padded = -(-n * width // _ALIGNED) * _ALIGNED
        memory = torch.empty(columns // width, padded, dtype=dtype, device=x.device)
        by_layer = memory[:, : n * width].view(-1, n, width)
        return by_layer.copy_(total.view(n, -1, width).transpose(0, 1)).unbind()

    def gated(self, gate: Tensor, own: Tensor) -> Tensor:
        """Return activation(gate) * own, [n, width] each, in the memory of `gate`."""
        act_and_mul(self._kernels.gpu, gate, gate, self._config.activation.kind, up=own)
        return gate

    def branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        """Return the branch of a layer's embeddings for the stream x: fp32 [n, hidden_size]."""
        inner = self.gated(branch.gate.matmul(x.to(own.dtype)), own)
        normed, out = torch.zeros_like(x), branch.out.matmul(inner)
        eps, offset = self._config.norm.eps, self._norm_offset
        add_norm(self._kernels.gpu, normed, out, branch.out_norm, eps, weight_offset=offset)
        return normed
