"""Liquid AI: LFM."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms, OutputGate
from swiftchat.weights.architectures.parts.embeddings import Head
from swiftchat.weights.architectures.parts.expert_readers import MOE_KEYS, first_dense
from swiftchat.weights.architectures.parts.fields import MAX_WIDTH, flag, integer, invalid, number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import KINDS
from swiftchat.weights.architectures.parts.layers import Layers, mixing, sparse, windowed
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL, mixer_layers
from swiftchat.weights.architectures.parts.mixers import ShortConv
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import rope_of_kind
from swiftchat.weights.architectures.parts.router import RouterConfig


def _short_conv(keys: Keys) -> ShortConv:
    kernel = integer(keys, "conv_L_cache", 2, MAX_KERNEL)
    return ShortConv(keys.hidden_size, kernel, flag(keys, "conv_bias"))


def _lfm2_layers(keys: Keys, intermediate_size: int) -> Layers:
    kinds, count = keys.layer_types, keys.num_layers
    if kinds is None and keys.get("model_type") != "lfm2_moe":
        full = keys.get("full_attn_idxs")
        full = list(range(count)) if full is None else full
        if not isinstance(full, list):
            raise invalid("full_attn_idxs", "a list of layers", full)
        kinds = ["full_attention" if i in full else "conv" for i in range(count)]
    mlp = keys.mlp(
        intermediate_size=intermediate_size, activation=keys.activation("silu"), bias=False
    )
    attention = keys.attention(bias=False, head_norms=HeadNorms("head"))
    layers = keys.layers(attention=attention, mlp=mlp)
    return mixing(layers, _short_conv(keys), mixer_layers(keys, kinds, "conv"), "silu")


def _lfm2_head(keys: Keys) -> Head:
    tied = "tie_word_embeddings" if keys.get("tie_embedding") is None else "tie_embedding"
    return keys.head(tied=flag(keys, tied))


def _lfm2(keys: Keys) -> ModelConfig:
    name = "intermediate_size" if keys.get("block_ff_dim") is None else "block_ff_dim"
    width = integer(keys, name, 1, MAX_WIDTH)
    if flag(keys, "block_auto_adjust_ff_dim"):
        width = int(2 * width / 3)
        if keys.get("block_ffn_dim_multiplier") is not None:
            multiplier = number(keys, "block_ffn_dim_multiplier", above=0.0, below=1e3)
            step = integer(keys, "block_multiple_of", 1, MAX_WIDTH)
            width = -(-int(multiplier * width) // step) * step
    return keys.model(_lfm2_layers(keys, width), head=_lfm2_head(keys))


def _lfm2_moe(keys: Keys) -> ModelConfig:
    router = RouterConfig(
        "sigmoid",
        correction=flag(keys, "use_expert_bias"),
        normalized=flag(keys, "norm_topk_prob"),
        eps=1e-6,
        scale=number(keys, "routed_scaling_factor", above=0.0, below=1e6),
    )
    moe = keys.moe(router, activation=keys.activation("silu"))
    dense = first_dense(keys, "num_dense_layers")
    layers = sparse(_lfm2_layers(keys, keys.intermediate_size), moe, dense)
    return keys.model(layers, head=_lfm2_head(keys))


def _lfm3(keys: Keys) -> ModelConfig:
    kinds, count = keys.layer_types, keys.num_layers
    if kinds is None:
        others = {0: "sliding_attention", 2: "full_attention"}
        kinds = ["conv", *(others.get(i % 4, "conv") for i in range(1, count))]
    window = keys.window() if "sliding_attention" in kinds else None
    if window is None and "sliding_attention" in kinds:
        raise invalid("sliding_window", "a number, as layer_types has sliding_attention", "none")
    gate = OutputGate(by_head=True) if flag(keys, "use_attention_gate") else None
    rope, local_rope = (rope_of_kind(keys, _LFM3_ROPES, kind, keys.head_dim) for kind in KINDS)
    layers = keys.layers(
        attention=keys.attention(rope=rope, head_norms=HeadNorms("head"), gate=gate),
        mlp=keys.mlp(activation=keys.activation("silu"), bias=False),
        norm_order="sandwich" if flag(keys, "use_sandwich_norm") else "pre",
    )
    attending = ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
    where = mixer_layers(keys, attending, "conv")
    windows = [window if kind == "sliding_attention" else None for kind in kinds]
    layers = windowed(layers, windows, local_rope)
    return keys.model(mixing(layers, _short_conv(keys), where, "silu"))


_LFM3_ROPES = frozen(
    full_attention=frozen(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5),
    sliding_attention=frozen(rope_type="default", rope_theta=1e4),
)

_TENSORS = {
    "final_norm": "model.embedding_norm.weight",
    "o": "self_attn.out_proj.weight",
    "q_norm": "self_attn.q_layernorm.weight",
    "k_norm": "self_attn.k_layernorm.weight",
    "attn_norm": "operator_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "feed_forward.w1.weight",
    "up": "feed_forward.w3.weight",
    "down": "feed_forward.w2.weight",
    "mixer_in": "conv.in_proj.weight",
    "mixer_in_bias": "conv.in_proj.bias",
    "mixer_conv": "conv.conv.weight",
    "mixer_conv_bias": "conv.conv.bias",
    "mixer_out": "conv.out_proj.weight",
    "mixer_out_bias": "conv.out_proj.bias",
}

_LLAMA_NAMES = ("o", "q_norm", "k_norm")  # which LFM3 has

_EXPERTS = {
    "router": "feed_forward.gate.weight",
    "router_correction": "feed_forward.expert_bias",
    "expert_gate": "feed_forward.experts.{e}.w1.weight",
    "expert_up": "feed_forward.experts.{e}.w3.weight",
    "expert_down": "feed_forward.experts.{e}.w2.weight",
}

_DEFAULTS = frozen(
    max_position_embeddings=128_000,
    norm_eps=1e-5,
    num_key_value_heads=8,
    rope_theta=1e6,
    tie_word_embeddings=True,
    conv_L_cache=3,
    bos_token_id=1,
    eos_token_id=2,
)


ARCHITECTURES: Architectures = {
    "Lfm2ForCausalLM": Architecture(
        model_type="lfm2",
        build=_lfm2,
        renamed=frozen(rms_norm_eps="norm_eps"),
        tensors=llama_tensors(_TENSORS),
        defaults=frozen(
            **_DEFAULTS,
            intermediate_size=12_288,
            block_auto_adjust_ff_dim=True,
            block_ffn_dim_multiplier=1.0,
            block_multiple_of=256,
        ),
    ),
    "Lfm3ForCausalLM": Architecture(
        model_type="lfm3",
        build=_lfm3,
        supported_keys=frozenset({"sliding_window"}),
        renamed=frozen(rms_norm_eps="norm_eps"),
        tensors=llama_tensors(
            {
                **{name: rest for name, rest in _TENSORS.items() if name not in _LLAMA_NAMES},
                "attn_gate": "self_attn.gate_proj.weight",
                "attn_out_norm": "post_operator_norm.weight",
                "mlp_out_norm": "post_ffn_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=128_000,
            norm_eps=1e-5,
            num_key_value_heads=4,
            head_dim=128,
            intermediate_size=7680,
            sliding_window=256,
            tie_word_embeddings=True,
            conv_L_cache=7,
            use_sandwich_norm=True,
            use_attention_gate=True,
            bos_token_id=124_894,
            eos_token_id=124_900,
        ),
    ),
    "Lfm2MoeForCausalLM": Architecture(
        model_type="lfm2_moe",
        build=_lfm2_moe,
        supported_keys=MOE_KEYS,
        renamed=frozen(rms_norm_eps="norm_eps", num_local_experts="num_experts"),
        tensors=llama_tensors({**_TENSORS, **_EXPERTS}),
        defaults=frozen(
            **_DEFAULTS,
            intermediate_size=7168,
            moe_intermediate_size=1792,
            num_local_experts=32,
            num_experts_per_tok=4,
            num_dense_layers=2,
            use_expert_bias=True,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
        ),
    ),
}
