"""Aria's language model: Llama with experts, of which some see every token.

Defaults and overrides are those of the model class in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.moe import SHARED_EXPERTS, moe_overrides
from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
)


def _aria(config: Fields) -> Mapping[str, Any]:
    if config.get("hidden_act", "silu") != "silu":  # the routed experts have it in any case
        raise invalid("hidden_act", "silu", config.get("hidden_act"))
    if flag(config, "mlp_bias"):
        raise invalid("mlp_bias", "false", True)
    width = integer(config, "intermediate_size", 1, MAX_WIDTH)
    shared = integer(config, "moe_num_shared_experts", 0, MAX_EXPERTS)
    bias = flag(config, "attention_bias")
    return {**moe_overrides(config), "attention_bias": bias, "shared_expert_size": shared * width}


ARIA: Mapping[str, Architecture] = {
    "AriaTextForCausalLM": Architecture(
        name="aria",
        model_type="aria_text",
        overrides=_aria,
        supported_keys=frozenset({"num_local_experts"}),
        renamed=frozen(num_local_experts="moe_num_experts", num_experts_per_tok="moe_topk"),
        tensors=llama_tensors(
            {
                **SHARED_EXPERTS,
                "router": "mlp.router.weight",
                "experts_gate_up": "mlp.experts.fc1.weight",
                "experts_down": "mlp.experts.fc2.weight",
            },
            without=(*SEPARATE_GATE_UP, "down"),
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            intermediate_size=4096,
            moe_num_experts=8,
            moe_topk=2,
            moe_num_shared_experts=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
