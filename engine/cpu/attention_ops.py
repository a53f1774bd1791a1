"""The operations of a layer's attention: head norms, rotary embedding, cache write, attention."""

from collections.abc import Mapping

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import KVFormat, Norm, NormKind
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.cpu.references import References
from swiftchat.engine.model.kv_cache import LayerKV
from swiftchat.engine.model.rope import cos_sin_table, query_factor_table
from swiftchat.engine.reference.attention import alibi_slopes
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.attention import Attention

_KV_FORMATS: Mapping[object, KVFormat] = {
    torch.float32: KVFormat.F32,
    torch.float16: KVFormat.F16,
    torch.bfloat16: KVFormat.BF16,
    "int8": KVFormat.INT8,
    "fp8": KVFormat.FP8,
    "int5": KVFormat.INT5,
}


class AttentionOps:
    """Makes the operations of `TorchOps.attend` for the layers of a model.

    `references` own the memory that they point to.
    """

    def __init__(self, config: ModelConfig, references: References, ctx_size_tokens: int) -> None:
        self._config, self._references = config, references
        cpu = torch.device("cpu")
        self._cos_sin = {
            (rope, width): references.keep(cos_sin_table(rope, width, ctx_size_tokens, cpu))
            for rope, width in config.ropes
        }
        self._num_positions = ctx_size_tokens
        factors = query_factor_table(config.growth, ctx_size_tokens, cpu)
        self._query_factors = None if factors is None else references.keep(factors)
        slopes = alibi_slopes(config)
        self._slopes = None if slopes is None else references.keep(slopes)

    def check(self) -> None:
        """Raise `CannotRecordError` for a model with attention that no kernel computes."""
        for attention in self._config.attentions:
            if attention.latent is not None:
                raise CannotRecordError("no kernel computes latent attention")
            if attention.values.dim != attention.head_dim:
                raise CannotRecordError("no kernel has values of another width than keys")
            if self._num_positions > (attention.scores.chunk or self._num_positions):
                raise CannotRecordError("no kernel attends in chunks")
            if attention.scores.first_key:
                raise CannotRecordError("no kernel leaves out the first keys")

    def rotary(
        self, layer: int, cache: native.LayerCache, norms: tuple[Tensor, Tensor] | None
    ) -> native.RotaryOp:
        """Return what normalizes, rotates and stores the heads of a layer, without its buffer."""
        config, kind = self._attention(layer), self._attention(layer).head_norms
        has_norms, head_dim = norms is not None and kind is not None, config.head_dim
        op = native.RotaryOp(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads if config.kv_source is None else 0,
            head_dim=head_dim,
            norm_width=0 if has_norms and kind is not None and kind.over == "width" else head_dim,
            norm_after=has_norms and kind is not None and kind.after_rope,
            values_are_keys=config.values.are_keys,
            cache=cache,
        )
        if norms is not None:
            op.q_norm = self._head_norm(norms[0], config.num_heads, head_dim)
            op.k_norm = self._head_norm(norms[1], config.num_kv_heads, head_dim)
        if config.values.normalized:
            ones = self._references.keep(torch.ones(head_dim))
            op.v_norm = Norm(NormKind.RMS, self._config.norm.eps, ones.data_ptr())
        if config.scores.growth is not None and self._query_factors is not None:
            op.query_factors = self._query_factors.data_ptr()
        if config.rope is not None:
            table = self._cos_sin[config.rope, config.rope_width]
            op.cos_sin, op.num_positions = table.data_ptr(), self._num_positions
            op.two_dimensional = config.rope.two_dimensional
        return op

    def attention(
        self, layer: int, cache: native.LayerCache, sinks: Tensor | None
    ) -> native.AttentionOp:
        """Return the attention of a layer, without its buffers."""
        config = self._attention(layer)
        return native.AttentionOp(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.scores.window or 0,
            scale=config.scores.scale,
            softcap=config.scores.softcap or 0.0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            sinks=self._references.floats(sinks),
            cache=cache,
        )

    def _attention(self, layer: int) -> Attention:
        attention = self._config.layers[layer].attention
        assert attention is not None
        return attention

    def _head_norm(self, weight: Tensor, num_heads: int, head_dim: int) -> Norm:
        """Return the norm of queries or keys, with weights for the elements of all heads."""
        config = self._config
        kind = NormKind.RMS if config.norm.kind == "rms" else NormKind.LAYER
        scale = weight.float() + float(config.norm.unit_offset)
        if len(scale) == head_dim:
            scale = scale.repeat(num_heads)
        return Norm(kind, config.norm.eps, self._references.keep(scale).data_ptr())


def layer_cache(kv: LayerKV, block_size: int) -> native.LayerCache:
    """Describe the cache of a layer, which must stay alive, for the kernels."""
    if isinstance(kv, Tensor):
        return native.LayerCache(_KV_FORMATS[kv.dtype], block_size, kv.data_ptr())
    return native.LayerCache(
        format=_KV_FORMATS[kv.scheme],
        block_size=block_size,
        values=kv.values.data_ptr(),
        scales=kv.scales.data_ptr(),
        key_bits=None if kv.key_bits is None else kv.key_bits.data_ptr(),
        value_bits=None if kv.value_bits is None else kv.value_bits.data_ptr(),
    )
