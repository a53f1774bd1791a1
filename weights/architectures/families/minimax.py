"""MiniMax."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import MIXTRAL_EXPERTS, MOE_KEYS
from swiftchat.weights.architectures.parts.fields import number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import mixing
from swiftchat.weights.architectures.parts.lightning import Lightning
from swiftchat.weights.architectures.parts.mixer_readers import mixer_layers
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _minimax(keys: Keys) -> ModelConfig:
    heads, count, kinds = keys.num_heads, keys.num_layers, keys.layer_types
    if kinds is None:
        kinds = [("full_attention", "linear_attention")[i % 2] for i in range(count)]

    def multiplier(name: str) -> float:
        return number(keys, f"{name}_factor", above=-1e6, below=1e6, default=1.0)

    router = RouterConfig(normalized=True, scale=multiplier("mlp_beta"))
    attention = keys.attention(
        bias=False,
        scores=keys.scores(window=keys.window()),
        out_scale=multiplier("full_attn_beta"),
    )
    layers = keys.layers(
        attention=attention,
        mlp=None,
        moe=keys.moe(router, expert_size=keys.intermediate_size),
        norm_order="stream",
        stream_scales=(multiplier("full_attn_alpha"), multiplier("mlp_alpha")),
    )
    layers = mixing(
        layers,
        Lightning(heads, keys.head_dim, count, _NORM_EPS),
        mixer_layers(keys, kinds, "linear_attention"),
        keys.activation_kind,
        mixer_out_scale=multiplier("linear_attn_beta"),
        stream_scales=(multiplier("linear_attn_alpha"), multiplier("mlp_alpha")),
    )
    return keys.model(layers)


def _minimax_m2(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=False, head_norms=HeadNorms("width"))
    router = RouterConfig("sigmoid", correction=True, normalized=True)
    moe = keys.moe(router, expert_size=keys.intermediate_size)
    return keys.model(keys.layers(attention=attention, mlp=None, moe=moe))


_NORM_EPS = 1e-6  # of the norms inside of lightning attention


ARCHITECTURES: Architectures = {
    "MiniMaxForCausalLM": Architecture(
        model_type="minimax",
        build=_minimax,
        supported_keys=frozenset({"num_local_experts", "num_experts", "sliding_window"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **MIXTRAL_EXPERTS,
                "mixer_qkv": "self_attn.qkv_proj.weight",
                "mixer_z": "self_attn.output_gate.weight",
                "mixer_out": "self_attn.out_proj.weight",
                "mixer_norm": "self_attn.norm.weight",
            }
        ),
        defaults=frozen(
            vocab_size=32_000,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_theta=1e6,
            num_local_experts=8,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "MiniMaxM2ForCausalLM": Architecture(
        model_type="minimax_m2",
        build=_minimax_m2,
        supported_keys=MOE_KEYS | {"rotary_dim", "partial_rotary_factor", "use_qk_norm"},
        tensors=llama_tensors(
            {
                **MIXTRAL_EXPERTS,
                "router_correction": "block_sparse_moe.e_score_correction_bias",
            },
            without=("gate", "up", "down"),
        ),
        defaults=frozen(
            max_position_embeddings=196_608,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=5e6,
            num_local_experts=256,
            num_experts_per_tok=8,
            bos_token_id=200_034,
            eos_token_id=200_020,
        ),
    ),
}
