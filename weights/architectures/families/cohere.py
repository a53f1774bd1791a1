"""Cohere: Command R and Command A.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    SHARED_EXPERTS,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    integer,
    invalid,
    layer_types,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _kinds(config: Fields, first_dense: int) -> list[str]:
    """Return the kinds of attention; the first dense layers have a pattern of their own."""
    kinds = layer_types(config)
    if kinds is not None:
        return kinds
    dense = integer(config, "prefix_dense_sliding_window_pattern", 1, MAX_LAYERS)
    sparse = integer(config, "sliding_window_pattern", 1, MAX_LAYERS)
    counts = ((first_dense, dense), (num_layers(config) - first_dense, sparse))
    return [
        "sliding_attention" if (i + 1) % pattern else "full_attention"
        for count, pattern in counts
        for i in range(count)
    ]


def _router(config: Fields) -> RouterConfig:
    kind = config.get("expert_selection_fn")
    if kind == "softmax":  # over the chosen experts
        return RouterConfig(normalized=True)
    if kind == "sigmoid":
        return RouterConfig("sigmoid", normalized=flag(config, "norm_topk_prob"))
    raise invalid("expert_selection_fn", "softmax or sigmoid", kind)


def _out_scale(config: Fields, num_shared: int) -> float:
    if not num_shared:
        return 1.0
    strategy = config.get("shared_expert_combination_strategy")
    if strategy not in ("sum", "average"):
        raise invalid("shared_expert_combination_strategy", "sum or average", strategy)
    return 0.5 if strategy == "average" else 1.0


def _cohere2_moe(config: Fields) -> Mapping[str, Any]:
    first = optional_integer(config, "first_k_dense_replace", 0, num_layers(config)) or 0
    kinds, dense = _kinds(config, first), listed_dense(config, first)
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    rotates_dense = integer(config, "prefix_dense_sliding_window_pattern", 1, MAX_LAYERS) == 1
    width = integer(config, "intermediate_size", 1, MAX_WIDTH)
    experts = integer(config, "num_experts", 1, MAX_EXPERTS)
    num_shared = optional_integer(config, "num_shared_experts", 0, MAX_EXPERTS) or 0
    is_rms = config.get("rms_norm_eps") is not None
    eps = "rms_norm_eps" if is_rms else "layer_norm_eps"
    if config.get("rope_scaling"):  # the reference does not read it
        raise invalid("rope_scaling", "absent, and rope_parameters instead", "an object")
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    return {
        "rope": RopeConfig.from_hf(config, head_dim, interleaved=True),
        "layer_types": kinds,
        "unrotated_layers": full - dense if rotates_dense else full,
        "norm": "rms" if is_rms else "layer",
        "norm_eps": number(config, eps, above=0.0, below=1.0),
        "parallel_residual": True,
        "shared_norm": True,
        "mlp_bias": False,
        "logit_scale": number(config, "logit_scale", above=0.0, below=1e6),
        "intermediate_size": optional_integer(
            config, "prefix_dense_intermediate_size", 1, MAX_WIDTH
        )
        or width,
        "num_experts": experts,
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "expert_size": width,
        "shared_expert_size": num_shared * width,
        "experts_out_scale": _out_scale(config, num_shared),
        "dense_layers": dense,
        "router": _router(config),
    }


def _cohere(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm": "layer",
        "parallel_residual": True,
        "shared_norm": True,
        "qk_norm": "heads" if flag(config, "use_qk_norm") else None,
        "logit_scale": number(config, "logit_scale", above=0.0, below=1e6),
    }


def _cohere2(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        kinds = every_nth_full(config, integer(config, "sliding_window_pattern", 1, MAX_LAYERS))
    full = frozenset(i for i, kind in enumerate(kinds) if kind == "full_attention")
    return {**_cohere(config), "layer_types": kinds, "unrotated_layers": full}


COHERE: Mapping[str, Architecture] = {
    "Cohere2MoeForCausalLM": Architecture(
        name="cohere2_moe",
        model_type="cohere2_moe",
        overrides=_cohere2_moe,
        interleaved_rope=True,
        windowed=True,
        supported_keys=frozenset({"logit_scale", "num_experts"}),
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERTS}),
        defaults=frozen(
            vocab_size=256_000,
            hidden_size=8192,
            intermediate_size=22_528,
            num_hidden_layers=40,
            num_attention_heads=64,
            head_dim=128,
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            sliding_window=4096,
            sliding_window_pattern=4,
            prefix_dense_sliding_window_pattern=1,
            num_experts=8,
            num_experts_per_tok=2,
            expert_selection_fn="softmax",
            shared_expert_combination_strategy="average",
            norm_topk_prob=True,
            tie_word_embeddings=True,
            bos_token_id=5,
            eos_token_id=255_001,
        ),
    ),
    "CohereForCausalLM": Architecture(
        name="cohere",
        model_type="cohere",
        overrides=_cohere,
        interleaved_rope=True,
        supported_keys=frozenset({"logit_scale", "use_qk_norm"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            rope_theta=5e5,
            tie_word_embeddings=True,
            bos_token_id=5,
            eos_token_id=255_001,
        ),
    ),
    "Cohere2ForCausalLM": Architecture(
        name="cohere2",
        model_type="cohere2",
        overrides=_cohere2,
        interleaved_rope=True,
        windowed=True,
        supported_keys=frozenset({"logit_scale"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            logit_scale=0.0625,
            sliding_window=4096,
            sliding_window_pattern=4,
            tie_word_embeddings=True,
            bos_token_id=5,
            eos_token_id=255_001,
        ),
    ),
}
