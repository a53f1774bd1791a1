"""Microsoft: Phi and BitNet."""

from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.expert_readers import MIXTRAL_EXPERTS, MOE_KEYS
from swiftchat.weights.architectures.parts.fields import flag, invalid
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _bitnet(keys: Keys) -> ModelConfig:
    return keys.model(keys.layers(mlp=keys.mlp(bias=False), inner_norms=True))


def _phi(keys: Keys) -> ModelConfig:
    layers = keys.layers(
        attention=keys.attention(bias=True),
        mlp=keys.mlp(activation=keys.activation(gated=False), bias=True),
        is_parallel=True,
        shared_norm=True,
    )
    norm, head = keys.norm("layer", has_bias=True), keys.head(bias=True)
    return keys.model(layers, norm=norm, head=head)


def _phi3(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=False, scores=keys.scores(window=keys.window()))
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _phimoe(keys: Keys) -> ModelConfig:
    jitter = keys.get("router_jitter_noise", 0.01)
    if jitter != 0.01:
        raise invalid("router_jitter_noise", "0.01", jitter)
    moe = keys.moe(
        RouterConfig("sparsemixer"),
        expert_size=keys.intermediate_size,
        experts_per_token=2,  # whatever config.json says
    )
    attention = keys.attention(scores=keys.scores(window=keys.window()))
    return keys.model(
        keys.layers(attention=attention, mlp=None, moe=moe),
        norm=keys.norm("layer", has_bias=True),
        head=keys.head(bias=flag(keys, "lm_head_bias")),
    )


ARCHITECTURES: Architectures = {
    "BitNetForCausalLM": Architecture(
        model_type="bitnet",
        build=_bitnet,
        tensors=llama_tensors(
            {
                "attn_inner_norm": "self_attn.attn_sub_norm.weight",
                "mlp_inner_norm": "mlp.ffn_sub_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_key_value_heads=5,
            rope_theta=5e5,
            hidden_act="relu2",
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "PhiForCausalLM": Architecture(
        model_type="phi",
        build=_phi,
        supported_keys=frozenset({"partial_rotary_factor"}),
        rejected_keys=frozenset({"qk_layernorm"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=tensor_names(
            {
                "q": "self_attn.q_proj.weight",
                "k": "self_attn.k_proj.weight",
                "v": "self_attn.v_proj.weight",
                "q_bias": "self_attn.q_proj.bias",
                "k_bias": "self_attn.k_proj.bias",
                "v_bias": "self_attn.v_proj.bias",
                "o": "self_attn.dense.weight",
                "o_bias": "self_attn.dense.bias",
                "up": "mlp.fc1.weight",
                "up_bias": "mlp.fc1.bias",
                "down": "mlp.fc2.weight",
                "down_bias": "mlp.fc2.bias",
                "attn_norm": "input_layernorm.weight",
                "attn_norm_bias": "input_layernorm.bias",
            },
            embed="model.embed_tokens.weight",
            final_norm="model.final_layernorm.weight",
            final_norm_bias="model.final_layernorm.bias",
            lm_head="lm_head.weight",
            lm_head_bias="lm_head.bias",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_eps=1e-5,
            hidden_act="gelu_new",
            partial_rotary_factor=0.5,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Phi3ForCausalLM": Architecture(
        model_type="phi3",
        build=_phi3,
        supported_keys=frozenset({"partial_rotary_factor"}) | WINDOW_KEYS,
        tensors=llama_tensors(
            {"qkv": "self_attn.qkv_proj.weight", "gate_up": "mlp.gate_up_proj.weight"},
            without=("q", "k", "v", "q_bias", "k_bias", "v_bias", *SEPARATE_GATE_UP),
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            bos_token_id=1,
            eos_token_id=32_000,
        ),
    ),
    "PhimoeForCausalLM": Architecture(
        model_type="phimoe",
        build=_phimoe,
        supported_keys=MOE_KEYS | WINDOW_KEYS,
        tensors=llama_tensors(
            {**MIXTRAL_EXPERTS, "lm_head_bias": "lm_head.bias"}, without=("gate", "up", "down")
        ),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=1e6,
            num_local_experts=16,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
