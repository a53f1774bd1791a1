"""Ai2: OLMo."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import EXPERTS, MOE_KEYS
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    flag,
    integer,
    invalid,
    mapping,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import OUTPUT_NORMS, every_nth_full
from swiftchat.weights.architectures.parts.layers import mixing, windowed
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import layer_ropes
from swiftchat.weights.architectures.parts.router import RouterConfig


def _olmo_hybrid(keys: Keys) -> ModelConfig:
    kinds, count = keys.layer_types, keys.num_layers
    if kinds is None:
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(count)]
        if "full_attention" not in kinds:
            kinds[-1] = "full_attention"
    key_heads = optional_integer(keys, "linear_num_key_heads", 1, MAX_HEADS) or keys.num_heads
    value_heads = optional_integer(keys, "linear_num_value_heads", 1, MAX_HEADS) or keys.num_heads
    if value_heads % key_heads:
        expected = f"a multiple of {key_heads} key heads"
        raise invalid("linear_num_value_heads", expected, value_heads)
    key_dim = optional_integer(keys, "linear_key_head_dim", 1, MAX_HEAD_DIM)
    key_dim = int(0.75 * keys.hidden_size / key_heads) if key_dim is None else key_dim
    mixer = GatedDelta(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=key_dim,
        value_dim=optional_integer(keys, "linear_value_head_dim", 1, MAX_HEAD_DIM) or 2 * key_dim,
        kernel=integer(keys, "linear_conv_kernel_dim", 2, MAX_KERNEL),
        norm_eps=1e-5,
        by_key_head=False,
        split=True,
        beta_scale=2.0 if flag(keys, "linear_allow_neg_eigval") else 1.0,
    )
    rope = mapping(keys, "rope_scaling") or mapping(keys, "rope_parameters") or {}
    theta = rope.get("rope_theta", keys.get("rope_theta", 1e4))
    # A base of null, as in published models: no rotation.
    attention = keys.attention(
        head_norms=HeadNorms("width"), rope=None if theta is None else keys.rope()
    )
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False), norm_order="output")
    where = mixer_layers(keys, kinds, "linear_attention")
    return keys.model(mixing(layers, mixer, where, keys.activation_kind, norm_order="pre"))


def _olmo2(keys: Keys) -> ModelConfig:
    attention = keys.attention(head_norms=HeadNorms("width"))
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False), norm_order="output")
    return keys.model(layers)


def _olmo(keys: Keys) -> ModelConfig:
    clip = optional_number(keys, "clip_qkv", above=0.0, below=1e6)
    layers = keys.layers(attention=keys.attention(clip=clip), mlp=keys.mlp(bias=False))
    return keys.model(layers, norm=keys.norm("layer", eps=1e-5, has_weights=False))


def _olmo3(keys: Keys) -> ModelConfig:
    rope, local_rope = layer_ropes(keys, keys.hidden_size // keys.num_heads, 5e5)
    attention = keys.attention(head_norms=HeadNorms("width"), rope=rope)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False), norm_order="output")
    return keys.model(windowed(layers, keys.windows(every_nth_full(keys, 4)), local_rope))


def _olmoe(keys: Keys) -> ModelConfig:
    attention = keys.attention(head_norms=HeadNorms("width"))
    router = RouterConfig(normalized=flag(keys, "norm_topk_prob"))
    moe = keys.moe(router, expert_size=keys.intermediate_size)
    return keys.model(keys.layers(attention=attention, mlp=None, moe=moe))


def _flex_olmo(keys: Keys) -> ModelConfig:
    return _olmoe(keys).with_layers(lambda layer: replace(layer, norm_order="output"))


_OLMO_MIXER = {
    "mixer_q": "linear_attn.q_proj.weight",
    "mixer_k": "linear_attn.k_proj.weight",
    "mixer_v": "linear_attn.v_proj.weight",
    "mixer_z": "linear_attn.g_proj.weight",
    "mixer_b": "linear_attn.b_proj.weight",
    "mixer_a": "linear_attn.a_proj.weight",
    "mixer_conv_q": "linear_attn.q_conv1d.weight",
    "mixer_conv_k": "linear_attn.k_conv1d.weight",
    "mixer_conv_v": "linear_attn.v_conv1d.weight",
    "mixer_decay": "linear_attn.A_log",
    "mixer_step_bias": "linear_attn.dt_bias",
    "mixer_norm": "linear_attn.o_norm.weight",
    "mixer_out": "linear_attn.o_proj.weight",
    "attn_norm": "attention_layer_norm.weight",
    "mlp_norm": "feedforward_layer_norm.weight",
}

_OLMO_DEFAULTS = frozen(max_position_embeddings=4096, norm_topk_prob=False)


ARCHITECTURES: Architectures = {
    "OlmoHybridForCausalLM": Architecture(
        model_type="olmo_hybrid",
        build=_olmo_hybrid,
        tensors=llama_tensors({**OUTPUT_NORMS, **_OLMO_MIXER}),
        defaults=frozen(
            max_position_embeddings=65_536,
            rms_norm_eps=1e-6,
            intermediate_size=11_008,
            linear_conv_kernel_dim=4,
            linear_allow_neg_eigval=True,
            eos_token_id=100_257,
        ),
    ),
    "Olmo2ForCausalLM": Architecture(
        model_type="olmo2",
        build=_olmo2,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(max_position_embeddings=2048, rms_norm_eps=1e-5, eos_token_id=50_279),
    ),
    "OlmoForCausalLM": Architecture(
        model_type="olmo",
        build=_olmo,
        supported_keys=frozenset({"clip_qkv"}),
        tensors=LLAMA_TENSORS,
        defaults=frozen(max_position_embeddings=2048, eos_token_id=50_279),
    ),
    "Olmo3ForCausalLM": Architecture(
        model_type="olmo3",
        build=_olmo3,
        supported_keys=WINDOW_KEYS,
        tensors=llama_tensors(OUTPUT_NORMS),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            sliding_window=4096,
            rope_theta=5e5,
            eos_token_id=50_279,
        ),
    ),
    "OlmoeForCausalLM": Architecture(
        model_type="olmoe",
        build=_olmoe,
        supported_keys=MOE_KEYS,
        rejected_keys=frozenset({"clip_qkv"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(EXPERTS),
        defaults=frozen(
            **_OLMO_DEFAULTS,
            rms_norm_eps=1e-5,
            num_local_experts=64,
            num_experts_per_tok=8,
            eos_token_id=50_279,
        ),
    ),
    "FlexOlmoForCausalLM": Architecture(
        model_type="flex_olmo",
        build=_flex_olmo,
        supported_keys=MOE_KEYS,
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors({**EXPERTS, **OUTPUT_NORMS}),
        defaults=frozen(
            **_OLMO_DEFAULTS,
            rms_norm_eps=1e-6,
            num_local_experts=7,
            num_experts_per_tok=5,
            rope_theta=5e5,
            eos_token_id=100_257,
        ),
    ),
}
