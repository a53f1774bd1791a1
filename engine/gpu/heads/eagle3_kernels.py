"""The layer of an EAGLE-3 head with our kernels, for captured steps of a few rows."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_attention import (
    decode_attention,
    decode_attention_workspace,
)
from swiftchat.cuda.ops.attention.rotary import rotary
from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.ops.layers.norm import norm
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import (
    Norm,
    Workspace,
    linear,
    linear_act_and_mul,
    linear_residual,
)
from swiftchat.cuda.ops.sampling.sampling import argmax, argmax_workspace
from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.gpu.heads.captured_chain import CHAIN_ROWS
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.speculation.eagle3 import Eagle3Layer
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS, HeadBlocks, PagedKeysValues


def eagle3_kernels_cover(gpu: Gpu, layer: Eagle3Layer) -> bool:
    """Return whether the kernels compute a head."""
    config, n = layer.config, CHAIN_ROWS
    weights = layer.qkv, layer.o, layer.gate_up, layer.down, layer.lm_head
    if any(len(weight.kernel_matrices) != 1 for weight in weights):
        return False
    _, o, gate_up, down, lm_head = (weight.kernel_matrices[0] for weight in weights)
    return (
        config.head_dim % 8 == 0
        and config.head_dim <= 256
        and all(linear_fits(gpu, n, matrix, splittable=True) for matrix in (o, down))
        and linear_fits(gpu, n, gate_up, pair_span=len(gate_up))
        and linear_fits(gpu, 1, lm_head)
    )


class Eagle3Kernels:
    """`HeadKernels` of an EAGLE-3 head."""

    def __init__(self, gpu: Gpu, layer: Eagle3Layer, embeddings: Matrix, num_blocks: int) -> None:
        config, n, device = layer.config, CHAIN_ROWS, gpu.device
        self._gpu, self._layer, self._embeddings = gpu, layer, embeddings
        self.dtype = layer.fc.dtype
        shape = num_blocks, 2 * config.num_kv_heads, BLOCK_TOKENS, config.head_dim
        self._blocks = HeadBlocks(torch.zeros(shape, dtype=self.dtype, device=device))
        self.width, self.hidden_size = layer.fc.shape[1], config.hidden_size
        self._input_norm, self._hidden_norm, self._mlp_norm, self._norm = (
            weight.to(self.dtype)
            for weight in (layer.input_norm, layer.hidden_norm, layer.mlp_norm, layer.norm)
        )
        self._workspace = Workspace(gpu, config.hidden_size)
        self._attention_workspace = decode_attention_workspace(
            gpu, n, config.num_heads, config.head_dim
        )
        self._embedded = torch.zeros(n, config.hidden_size, device=device)
        self._logits = torch.zeros(1, config.draft_vocab_size, device=device)
        self._max_logit = torch.zeros(1, device=device)
        self._best = torch.zeros(1, dtype=torch.int32, device=device)
        self._argmax_workspace = argmax_workspace(gpu, 1)
        self.id_map = layer.token_ids.int()

    def new_cache(self) -> PagedKeysValues:
        return PagedKeysValues(self._blocks)

    def features(self, joined: Tensor) -> Tensor:
        return self._layer.fc.matmul_fp32(joined)

    def forward_(self, x: Tensor, batch: DeviceBatch) -> None:
        gpu, layer, config, n = self._gpu, self._layer, self._layer.config, len(x)
        both = self._normed(x, batch)
        attended = self._attend(both, batch)
        if config.norm_before_residual:
            x.copy_(both[:, config.hidden_size :])
        (o,), (gate_up,), (down,) = (
            weight.kernel_matrices for weight in (layer.o, layer.gate_up, layer.down)
        )
        linear_residual(gpu, attended, o, x, self._workspace)
        inner = x.new_empty(n, config.intermediate_size, dtype=self.dtype)
        mlp_norm = Norm(self._mlp_norm, config.norm_eps)
        linear_act_and_mul(
            gpu, x, gate_up, inner, self._workspace, norm=mlp_norm, activation="silu"
        )
        linear_residual(gpu, inner, down, x, self._workspace)

    def best_id(self, x: Tensor) -> Tensor:
        gpu, (lm_head,) = self._gpu, self._layer.lm_head.kernel_matrices
        last_norm = Norm(self._norm, self._layer.config.norm_eps)
        linear(gpu, x, lm_head, self._logits, self._workspace, norm=last_norm)
        argmax(gpu, self._logits, self._max_logit, self._best, self._argmax_workspace)
        return self._best

    def _normed(self, x: Tensor, batch: DeviceBatch) -> Tensor:
        """Return the normed embeddings of the rows' tokens beside the normed x."""
        gpu, eps, n = self._gpu, self._layer.config.norm_eps, len(x)
        embedded = self._embedded[:n]
        embed(gpu, batch.ids, self._embeddings, embedded)
        parts = x.new_empty(2, n, x.shape[1], dtype=self.dtype)
        norm(gpu, embedded, self._input_norm, eps, parts[0])
        norm(gpu, x, self._hidden_norm, eps, parts[1])
        return parts.transpose(0, 1).reshape(n, -1)

    def _attend(self, both: Tensor, batch: DeviceBatch) -> Tensor:
        """Return the attention's output before its projection; store keys and values."""
        gpu, config, n = self._gpu, self._layer.config, len(both)
        heads = self._layer.qkv.matmul(both).view(n, -1, config.head_dim)
        cache = self._blocks.memory
        rotary(
            gpu,
            heads,
            cache,
            cos_sin=self._layer.cos_sin,
            positions=batch.positions,
            slot_mapping=batch.slot_mapping,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
        )
        out = both.new_empty(n, config.num_heads, config.head_dim)
        rows = batch.decode
        assert rows is not None
        decode_attention(
            gpu,
            heads[:, : config.num_heads],
            cache,
            block_tables=rows.block_tables,
            context_lens=rows.context_lens,
            scale=config.head_dim**-0.5,
            out=out,
            workspace=self._attention_workspace,
        )
        return out.view(n, -1)
