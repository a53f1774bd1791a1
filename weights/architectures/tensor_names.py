"""How the families name their tensors, as far as several share it."""

from collections.abc import Mapping
from types import MappingProxyType


def table(names: Mapping[str, str], **others: str) -> Mapping[str, str]:
    """Names of a layer's tensors, the place of the layer put before them, and of the others."""
    start = others.pop("layer")
    return MappingProxyType(others | {name: start + rest for name, rest in names.items()})


_LLAMA_LAYER = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "attn_norm_bias": "input_layernorm.bias",
    "mlp_norm_bias": "post_attention_layernorm.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
_LLAMA_ENDS = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "final_norm_bias": "model.norm.bias",
    "lm_head": "lm_head.weight",
    "layer": "model.layers.{i}.",
}


def like_llama(changes: Mapping[str, str], without: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Llama's names but those of `without`, with `changes` to those of a layer."""
    layer = {name: rest for name, rest in _LLAMA_LAYER.items() if name not in without}
    return table({**layer, **changes}, **_LLAMA_ENDS)


LLAMA_TENSORS = like_llama({})
FUSED_FFN = ("gate", "up", "gate_bias", "up_bias")
FUSED_QKV = ("q", "k", "v", "q_bias", "k_bias", "v_bias")
QWEN_EXPERTS = {
    "router": "mlp.gate.weight",
    "expert_gate": "mlp.experts.{e}.gate_proj.weight",
    "expert_up": "mlp.experts.{e}.up_proj.weight",
    "expert_down": "mlp.experts.{e}.down_proj.weight",
}
SANDWICH = {
    "attn_out_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_out_norm": "post_feedforward_layernorm.weight",
}
