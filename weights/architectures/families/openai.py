"""OpenAI: GPT-2 and GPT-OSS."""

from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.embeddings import Positions
from swiftchat.weights.architectures.parts.fields import MAX_CONTEXT, flag, integer, invalid, number
from swiftchat.weights.architectures.parts.gpt_readers import GPT_KEYS, mlp_width
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _gpt2(keys: Keys) -> ModelConfig:
    scores = keys.scores() if flag(keys, "scale_attn_weights") else keys.scores(scale=1.0)
    layers = keys.layers(
        attention=keys.attention(num_kv_heads=keys.num_heads, bias=True, rope=None, scores=scores),
        mlp=keys.mlp(
            intermediate_size=mlp_width(keys, "n_inner"),
            activation=keys.activation(gated=False),
            bias=True,
        ),
    )
    positions = Positions(integer(keys, "max_position_embeddings", 1, MAX_CONTEXT))
    return keys.model(
        layers,
        norm=keys.norm("layer", has_bias=True),
        embeddings=keys.embeddings(positions=positions),
    )


def _gpt_oss(keys: Keys) -> ModelConfig:
    if keys.get("rope_parameters") is None:
        keys = keys.changed(rope_parameters=_GPT_OSS_ROPE)
    # The activation of the experts depends on it, not on `hidden_act`.
    alpha = number(keys, "swiglu_alpha", above=0.0, below=1e3)
    if alpha != 1.702:
        raise invalid("swiglu_alpha", "1.702", alpha)
    limit = number(keys, "swiglu_limit", above=0.0, below=1e6)
    moe = keys.moe(
        RouterConfig(normalized=True),
        expert_size=keys.intermediate_size,
        activation=keys.activation("gelu_sigmoid", interleaved=True, limit=limit),
        bias=True,
    )
    attention = keys.attention(scores=keys.scores(sinks=True))
    layers = keys.layers(attention=attention, mlp=None, moe=moe)
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(keys.num_layers)]
    return keys.model(windowed(layers, keys.windows(kinds)))


# The layers of GPT-2; other models use the same names.
GPT_LAYER = {
    "qkv": "attn.c_attn.weight",
    "qkv_bias": "attn.c_attn.bias",
    "o": "attn.c_proj.weight",
    "o_bias": "attn.c_proj.bias",
    "up": "mlp.c_fc.weight",
    "up_bias": "mlp.c_fc.bias",
    "down": "mlp.c_proj.weight",
    "down_bias": "mlp.c_proj.bias",
    "attn_norm": "ln_1.weight",
    "attn_norm_bias": "ln_1.bias",
    "mlp_norm": "ln_2.weight",
    "mlp_norm_bias": "ln_2.bias",
}

_GPT_OSS_ROPE = frozen(
    rope_type="yarn",
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=4096,
)


ARCHITECTURES: Architectures = {
    "GPT2LMHeadModel": Architecture(
        model_type="gpt2",
        build=_gpt2,
        renamed=GPT_KEYS,
        rejected_keys=frozenset({"scale_attn_by_inverse_layer_idx", "add_cross_attention"}),
        prefix="transformer.",
        transposed=frozenset({"qkv", "o", "up", "down"}),
        tensors=tensor_names(
            GPT_LAYER,
            embed="transformer.wte.weight",
            positions="transformer.wpe.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            n_positions=1024,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_new",
            scale_attn_weights=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "GptOssForCausalLM": Architecture(
        model_type="gpt_oss",
        build=_gpt_oss,
        supported_keys=frozenset({"num_local_experts"}) | WINDOW_KEYS,
        tensors=llama_tensors(
            {
                "sinks": "self_attn.sinks",
                "router": "mlp.router.weight",
                "router_bias": "mlp.router.bias",
                "experts_gate_up": "mlp.experts.gate_up_proj",
                "experts_gate_up_bias": "mlp.experts.gate_up_proj_bias",
                "experts_down": "mlp.experts.down_proj",
                "experts_down_bias": "mlp.experts.down_proj_bias",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=64,
            sliding_window=128,
            attention_bias=True,
            num_local_experts=128,
            num_experts_per_tok=4,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            rope_theta=150_000.0,
        ),
    ),
}
