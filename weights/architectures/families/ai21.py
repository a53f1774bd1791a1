"""AI21: Jamba."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import mixing, sparse
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixer_readers import (
    FEED_FORWARD,
    MAMBA_TENSORS,
    MAX_KERNEL,
    step_rank,
)
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _every(keys: Keys, period: str, offset: str) -> frozenset[int]:
    step = integer(keys, period, 1, MAX_LAYERS)
    first = integer(keys, offset, 0, step - 1)
    return frozenset(range(first, keys.num_layers, step))


def _jamba(keys: Keys) -> ModelConfig:
    everywhere = frozenset(range(keys.num_layers))
    mixer = Mamba(
        width=integer(keys, "mamba_expand", 1, MAX_WIDTH) * keys.hidden_size,
        state_size=integer(keys, "mamba_d_state", 1, MAX_HEAD_DIM),
        step_rank=step_rank(keys, "mamba_dt_rank"),
        kernel=integer(keys, "mamba_d_conv", 2, MAX_KERNEL),
        bias=flag(keys, "mamba_proj_bias"),
        conv_bias=flag(keys, "mamba_conv_bias"),
        norm_eps=keys.eps,
        norm_weights=True,
    )
    attention = keys.attention(bias=False, rope=None)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False))
    attending = _every(keys, "attn_layer_period", "attn_layer_offset")
    layers = mixing(layers, mixer, everywhere - attending, keys.activation_kind)
    if keys.num_experts > 1:
        moe = keys.moe(RouterConfig(), expert_size=keys.intermediate_size)
        having = _every(keys, "expert_layer_period", "expert_layer_offset")
        layers = sparse(layers, moe, everywhere - having)
    return keys.model(layers)


ARCHITECTURES: Architectures = {
    "JambaForCausalLM": Architecture(
        model_type="jamba",
        build=_jamba,
        supported_keys=frozenset({"num_local_experts", "num_experts"}),
        renamed=frozen(num_local_experts="num_experts"),
        tensors=llama_tensors(
            {
                **{name: f"mamba.{rest}" for name, rest in MAMBA_TENSORS.items()},
                **FEED_FORWARD,
                "mixer_step_norm": "mamba.dt_layernorm.weight",
                "mixer_b_norm": "mamba.b_layernorm.weight",
                "mixer_c_norm": "mamba.c_layernorm.weight",
                "router": "feed_forward.router.weight",
                "expert_gate": "feed_forward.experts.{e}.gate_proj.weight",
                "expert_up": "feed_forward.experts.{e}.up_proj.weight",
                "expert_down": "feed_forward.experts.{e}.down_proj.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=262_144,
            rms_norm_eps=1e-6,
            intermediate_size=14_336,
            num_key_value_heads=8,
            num_local_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_conv_bias=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
