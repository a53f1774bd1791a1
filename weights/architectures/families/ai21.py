"""AI21: Jamba.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import moe_overrides
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixer_readers import (
    FEED_FORWARD,
    MAMBA_TENSORS,
    MAX_KERNEL,
    step_rank,
)
from swiftchat.weights.architectures.parts.router import RouterConfig


def _every(config: Fields, period: str, offset: str) -> frozenset[int]:
    step = integer(config, period, 1, MAX_LAYERS)
    first = integer(config, offset, 0, step - 1)
    return frozenset(range(first, num_layers(config), step))


def _jamba(config: Fields) -> Mapping[str, Any]:
    layers = frozenset(range(num_layers(config)))
    experts: Mapping[str, Any] = {}
    if integer(config, "num_local_experts", 1, MAX_EXPERTS) > 1:
        sparse = _every(config, "expert_layer_period", "expert_layer_offset")
        experts = {
            **moe_overrides(config),
            "router": RouterConfig(),
            "dense_layers": layers - sparse,
        }
    return {
        **experts,
        "attention_bias": False,
        "mlp_bias": False,
        "rope": None,
        "mixer_layers": layers - _every(config, "attn_layer_period", "attn_layer_offset"),
        "mixer": Mamba(
            width=integer(config, "mamba_expand", 1, MAX_WIDTH) * hidden_size(config),
            state_size=integer(config, "mamba_d_state", 1, MAX_HEAD_DIM),
            step_rank=step_rank(config, "mamba_dt_rank"),
            kernel=integer(config, "mamba_d_conv", 2, MAX_KERNEL),
            bias=flag(config, "mamba_proj_bias"),
            conv_bias=flag(config, "mamba_conv_bias"),
            norm_eps=number(config, "rms_norm_eps", above=0.0, below=1.0),
            norm_weights=True,
        ),
    }


AI21: Mapping[str, Architecture] = {
    "JambaForCausalLM": Architecture(
        name="jamba",
        model_type="jamba",
        overrides=_jamba,
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
