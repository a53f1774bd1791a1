"""Attention to the keys and values of heads, by the project's kernels."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_attention import (
    decode_attention,
    decode_attention_workspace,
)
from swiftchat.cuda.ops.attention.decode_rotary import DecodeRotary, decode_rotary_fits
from swiftchat.cuda.ops.attention.prefill_attention import prefill_attention
from swiftchat.cuda.ops.attention.rotary import HeadNorm, head_norm_fits, rotary
from swiftchat.cuda.ops.attention.rotate_heads import rotate_heads
from swiftchat.cuda.quantized_kv import KVScales, scheme_of
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch, Rows
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.norms import norm_heads_
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.rope import cos_sin_table, query_factor_table
from swiftchat.engine.reference.attention import alibi_slopes
from swiftchat.engine.schedule.batch import padded_rows
from swiftchat.weights.architectures.parts.attention import NO_ATTENTION, Scores
from swiftchat.weights.parallel.tensor_parallel import Shard


def kernel_kv(kv: LayerKV) -> tuple[Tensor, KVScales | None]:
    """Return a layer's cache for the kernels: its tensor, and its scales if it is quantized."""
    if isinstance(kv, Tensor):
        return kv, None
    return kv.values, KVScales(kv.scheme, kv.scales, kv.key_bits, kv.value_bits)


class AttentionKernels:
    """The attention of a model's layers, or of a rank's shard of them, on one GPU.

    Layers may differ in their heads, share the keys and values of another one, and have keys that
    are also the values. `layers` are the attention of each layer.
    """

    def __init__(self, gpu: Gpu, shard: Shard, ctx_size_tokens: int, max_num_seqs: int) -> None:
        config = shard.local_config
        self._gpu, self._config = gpu, config
        self.layers = [layer.attention or NO_ATTENTION for layer in config.layers]
        self._cos_sin_tables = {
            (rope, width): cos_sin_table(rope, width, ctx_size_tokens, gpu.device)
            for rope, width in config.ropes
        }
        self._query_factors = query_factor_table(config.growth, ctx_size_tokens, gpu.device)
        slopes = alibi_slopes(shard.config)
        slopes = None if slopes is None else slopes[slice(*shard.heads)].to(gpu.device)
        self._alibi_slopes = slopes
        widest = max(layer.head_dim for layer in self.layers)
        self._workspace = decode_attention_workspace(
            gpu, padded_rows(max_num_seqs), config.attention.num_heads, widest
        )
        self._softcap = config.attention.scores.softcap or 0.0
        self._ctx_size_tokens = ctx_size_tokens
        self._norm_offset = float(config.norm.unit_offset and config.norm.kind == "rms")

    def cos_sin(self, layer: int) -> Tensor | None:
        """Return a layer's cosines and sines, fp32 [num_positions, head_dim]; None: no rotation."""
        config = self.layers[layer]
        if config.rope is None:
            return None
        return self._cos_sin_tables[config.rope, config.rope_width]

    def query_factors(self, layer: int) -> Tensor | None:
        """Return what a layer's queries are multiplied by, fp32 [num_positions]; None: by 1."""
        return None if self.layers[layer].scores.growth is None else self._query_factors

    def _chunk(self, scores: Scores) -> int:
        """Return the tokens of the chunks within which a layer attends; 0: they have one chunk."""
        chunk = scores.chunk or 0
        return chunk if chunk < self._ctx_size_tokens else 0

    def _head_norm(self, inputs: AttentionInputs) -> HeadNorm | None:
        """Return the norms of heads that `rotary` computes; None: no norms, or it cannot."""
        config, norms = self.layers[inputs.layer], inputs.norms
        kind, size = config.head_norms, config.head_dim
        if norms is None or kind is None or kind.over != "head" or not head_norm_fits(size, size):
            return None
        query, key = norms
        return HeadNorm(
            query,
            key if len(key) else query,  # without keys of its own
            self._config.norm.eps,
            self._norm_offset,
            after=kind.after_rope,
            values=config.values.normalized,
        )

    def norms_heads(self, inputs: AttentionInputs) -> bool:
        """Return whether the kernels normalize a layer's heads, or there is nothing to do."""
        return inputs.norms is None or self._head_norm(inputs) is not None

    def rotate(
        self, plan: DeviceBatch, qkv: Tensor, inputs: AttentionInputs, num_gate_heads: int = 0
    ) -> Tensor:
        """Normalize and rotate queries and keys, and store keys and values in a layer's cache.

        Returns the queries [n, num_heads, head_dim], which are rotated in place in `qkv` [n, …].
        Gates of the attention's output, `num_gate_heads` heads wide, follow the queries.
        """
        (cache, kv_scales), config = kernel_kv(inputs.kv), self.layers[inputs.layer]
        head_norm = self._head_norm(inputs)
        if inputs.norms is not None and head_norm is None:
            assert num_gate_heads == 0  # see `norms_heads`
            norm_heads_(qkv, *inputs.norms, config, self._config.norm)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotary(
            self._gpu,
            heads,
            cache,
            cos_sin=self.cos_sin(inputs.layer),
            positions=plan.positions,
            slot_mapping=plan.slot_mapping,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads if config.kv_source is None else 0,
            norm=head_norm,
            query_factors=self.query_factors(inputs.layer),
            kv_scales=kv_scales,
            keys_as_values=config.values.are_keys,
            num_gate_heads=num_gate_heads,
        )
        return heads[:, : config.num_heads]

    def decode_rotary(
        self, plan: DeviceBatch, inputs: AttentionInputs, num_gate_heads: int = 0
    ) -> DecodeRotary | None:
        """Return what `decode` needs to do the work of `rotate`; None: it cannot."""
        config, norm = self.layers[inputs.layer], self._head_norm(inputs)
        rotary = DecodeRotary(
            self.cos_sin(inputs.layer), plan.positions, plan.slot_mapping, norm, num_gate_heads
        )
        fits = (
            isinstance(inputs.kv, Tensor)
            and config.kv_source is None
            and not config.values.are_keys
            and self.query_factors(inputs.layer) is None
            and (norm is not None or inputs.norms is None)
            and decode_rotary_fits(config.head_dim, rotary.rotary_dim, norm)
        )
        return rotary if fits else None

    def decode(
        self,
        q: Tensor,
        inputs: AttentionInputs,
        rows: Rows,
        out: Tensor,
        *,
        new_tokens: int = 0,
        even_lengths: bool = False,
        rotary: DecodeRotary | None = None,
    ) -> None:
        """Write the attention of one token of each sequence to `out` [n, num_heads, head_dim].

        `new_tokens`, `even_lengths` and `rotary` are those of `decode_attention`.
        """
        (cache, kv_scales), scores = kernel_kv(inputs.kv), self.layers[inputs.layer].scores
        decode_attention(
            self._gpu,
            q,
            cache,
            block_tables=rows.block_tables,
            context_lens=rows.context_lens,
            scale=scores.scale,
            out=out,
            workspace=self._workspace,
            window=scores.window or 0,
            chunk=self._chunk(scores),
            first_key=scores.first_key,
            softcap=self._softcap,
            alibi_slopes=self._alibi_slopes,
            sinks=inputs.sinks,
            new_tokens=new_tokens,
            even_lengths=even_lengths,
            kv_scales=kv_scales,
            rotary=rotary,
        )

    def prefill(self, q: Tensor, inputs: AttentionInputs, rows: Rows, out: Tensor) -> None:
        """Write the attention of all tokens of the rows to `out` [n, num_heads, head_dim]."""
        (cache, kv_scales), scores = kernel_kv(inputs.kv), self.layers[inputs.layer].scores
        assert rows.query_starts is not None and not scores.first_key
        prefill_attention(
            self._gpu,
            q,
            cache,
            block_tables=rows.block_tables,
            query_starts=rows.query_starts,
            context_lens=rows.context_lens,
            max_num_tokens=rows.max_num_tokens,
            scale=scores.scale,
            out=out,
            window=scores.window or 0,
            chunk=self._chunk(scores),
            softcap=self._softcap,
            alibi_slopes=self._alibi_slopes,
            sinks=inputs.sinks,
            kv_scales=kv_scales,
        )
        if scheme_of(kv_scales) == "int5":
            rotate_heads(self._gpu, out)
