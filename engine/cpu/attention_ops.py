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
        self._cos_sin: list[Tensor] = [
            references.keep(
                cos_sin_table(rope, config.of_layer(layer).head_dim, ctx_size_tokens, cpu)
            )
            for rope, layer in config.ropes
        ]
        self._num_positions = ctx_size_tokens
        factors = query_factor_table(config.query_growth, ctx_size_tokens, cpu)
        self._query_factors = None if factors is None else references.keep(factors)
        self._slopes = references.keep(alibi_slopes(config)) if config.alibi else None

    def check(self) -> None:
        """Raise `CannotRecordError` for a model with attention that no kernel computes."""
        config = self._config
        if config.value_size is not None:
            raise CannotRecordError("no kernel has values of another width than keys")
        if config.latent is not None:
            raise CannotRecordError("no kernel computes latent attention")
        if self._num_positions > (config.attention_chunk or self._num_positions):
            raise CannotRecordError("no kernel attends in chunks")

    def rotary(
        self, layer: int, cache: native.LayerCache, norms: tuple[Tensor, Tensor] | None
    ) -> native.RotaryOp:
        """Return what normalizes, rotates and stores the heads of a layer, without its buffer."""
        config, whole = self._config.of_layer(layer), self._config
        owns_kv = whole.kv_source(layer) == layer
        op = native.RotaryOp(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads if owns_kv else 0,
            head_dim=config.head_dim,
            norm_width=0 if norms is not None and config.qk_norm == "width" else config.head_dim,
            norm_after=norms is not None and config.qk_norm_after_rope,
            values_are_keys=layer in whole.keys_as_values,
            cache=cache,
        )
        if norms is not None:
            op.q_norm = self._head_norm(norms[0], config.num_heads, config.head_dim)
            op.k_norm = self._head_norm(norms[1], config.num_kv_heads, config.head_dim)
        if config.value_norm:
            ones = self._references.keep(torch.ones(config.head_dim))
            op.v_norm = Norm(NormKind.RMS, config.norm_eps, ones.data_ptr())
        if whole.growth(layer) is not None and self._query_factors is not None:
            op.query_factors = self._query_factors.data_ptr()
        if self._cos_sin and layer not in whole.unrotated_layers:
            table = self._cos_sin[0 if whole.window(layer) is None else -1]
            op.cos_sin, op.num_positions = table.data_ptr(), self._num_positions
            op.two_dimensional = config.rope is not None and config.rope.two_dimensional
        return op

    def attention(
        self, layer: int, cache: native.LayerCache, sinks: Tensor | None
    ) -> native.AttentionOp:
        """Return the attention of a layer, without its buffers."""
        config, whole = self._config.of_layer(layer), self._config
        return native.AttentionOp(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=whole.window(layer) or 0,
            scale=config.attention_scale,
            softcap=config.attention_softcap or 0.0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            sinks=self._references.floats(sinks),
            cache=cache,
        )

    def _head_norm(self, weight: Tensor, num_heads: int, head_dim: int) -> Norm:
        """Return the norm of queries or keys, with weights for the elements of all heads."""
        config = self._config
        kind = NormKind.RMS if config.norm == "rms" else NormKind.LAYER
        scale = weight.float() + float(config.norm_unit_offset)
        if len(scale) == head_dim:
            scale = scale.repeat(num_heads)
        return Norm(kind, config.norm_eps, self._references.keep(scale).data_ptr())


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
