"""What the families with a gated FFN fix or read in their own way: fields of `ModelConfig`."""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.fields import Fields, bad, flag, integer, number
from swiftchat.weights.architectures.rope import RopeConfig

_MAX_LAYERS = 2048
_MAX_WIDTH = 2**20
_NO_BIASES = {"attention_bias": False, "mlp_bias": False}


def _num_layers(config: Fields) -> int:
    """How many layers there are, for the facts that differ among them."""
    return integer(config, "num_hidden_layers", 1, _MAX_LAYERS)


def no_biases(config: Fields) -> Mapping[str, Any]:
    return _NO_BIASES


def qwen2(config: Fields) -> Mapping[str, Any]:
    return {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "layer_types": _late_windows(config),
    }


def qwen3(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "qk_norm": "head", "layer_types": _late_windows(config)}


def _late_windows(config: Fields) -> list[str] | None:
    """Where a window is used, from which layer on it holds."""
    if not flag(config, "use_sliding_window") or config.get("sliding_window") is None:
        return None
    count = _num_layers(config)
    full = integer(config, "max_window_layers", 0, 2**30)
    return ["full_attention" if i < full else "sliding_attention" for i in range(count)]


def smollm3(config: Fields) -> Mapping[str, Any]:
    count = _num_layers(config)
    rotated = config.get("no_rope_layers")
    if rotated is None:
        interval = integer(config, "no_rope_layer_interval", 1, 2**30)
        rotated = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(rotated, list) or len(rotated) != count:
        raise bad("no_rope_layers", f"a list of {count} numbers", rotated)
    # In spite of its name, the list has ones for the layers that are rotated.
    ones = [integer({"no_rope_layers": one}, "no_rope_layers", 0, 1) for one in rotated]
    windowed = flag(config, "use_sliding_window") and config.get("sliding_window") is not None
    kinds = ["full_attention" if one or not windowed else "sliding_attention" for one in ones]
    return {
        "unrotated_layers": frozenset(i for i, one in enumerate(ones) if not one),
        "layer_types": kinds if windowed else None,
    }


def olmo2(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "norm_order": "output", "qk_norm": "width"}


def internlm2(config: Fields) -> Mapping[str, Any]:
    return {"attention_bias": flag(config, "bias"), "mlp_bias": False}


def stablelm(config: Fields) -> Mapping[str, Any]:
    parallel = flag(config, "use_parallel_residual")
    return {
        "norm": "layer",
        "norm_bias": True,
        "parallel_residual": parallel,
        "shared_norm": parallel,
        "qk_norm": "heads" if flag(config, "qk_layernorm") else None,
        "attention_bias": flag(config, "use_qkv_bias"),
        "output_bias": False,
        "mlp_bias": False,
    }


def glm(config: Fields) -> Mapping[str, Any]:
    return {"output_bias": False, "mlp_bias": False}


def glm4(config: Fields) -> Mapping[str, Any]:
    return {**glm(config), "norm_order": "sandwich"}


def chatglm(config: Fields) -> Mapping[str, Any]:
    """ChatGLM2, ChatGLM3 and GLM-4-9B as first published."""
    for name, wanted in (("rmsnorm", True), ("post_layer_norm", True), ("add_bias_linear", False)):
        if config.get(name, wanted) is not wanted:
            raise bad(name, str(wanted).lower(), config[name])
    heads = integer(config, "num_attention_heads", 1, 4096)
    head_dim = integer(config, "head_dim", 2, 4096)
    grouped = flag(config, "multi_query_attention")
    stretch = number(config, "rope_ratio", above=0.0, below=1e6, default=1.0)
    rope = {"rope_theta": 10_000.0 * stretch, "partial_rotary_factor": 0.5}
    return {
        "num_kv_heads": integer(config, "multi_query_group_num", 1, heads) if grouped else heads,
        "attention_bias": flag(config, "add_qkv_bias"),
        "output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": flag(config, "tie_word_embeddings"),
        "rope": RopeConfig.from_hf(rope, head_dim, interleaved=True),
    }


def gemma(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm_unit_offset": True,
        "embedding_scale": integer(config, "hidden_size", 1, 2**20) ** 0.5,
        # Also where the file says "gelu", as those first published do.
        "activation": "gelu_tanh",
    }


def gemma2(config: Fields) -> Mapping[str, Any]:
    facts = {**gemma(config), "norm_order": "sandwich"}
    if config.get("hidden_act") != "gelu_pytorch_tanh":
        raise bad("hidden_activation", "'gelu_pytorch_tanh'", config.get("hidden_act"))
    return facts | {"layer_types": _every_nth_full(config, 2)}


def gemma3(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, 4096)
    nested = config.get("rope_parameters")
    if isinstance(nested, Mapping) and "rope_type" not in nested and "rope_theta" not in nested:
        ropes = {
            name: {"rope_theta": theta, "rope_parameters": nested.get(name)}
            for name, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
        }
    else:
        local = {"rope_theta": config.get("rope_local_base_freq", 1e4)}
        ropes = {"full_attention": dict(config), "sliding_attention": local}
    pattern = integer(config, "sliding_window_pattern", 1, _MAX_LAYERS)
    return {
        **gemma2(config),
        "qk_norm": "head",
        "rope": RopeConfig.from_hf(ropes["full_attention"], head_dim),
        "local_rope": RopeConfig.from_hf(ropes["sliding_attention"], head_dim),
        "layer_types": _every_nth_full(config, pattern),
    }


def _every_nth_full(config: Fields, n: int) -> list[str]:
    return [
        "sliding_attention" if (i + 1) % n else "full_attention" for i in range(_num_layers(config))
    ]


def mixture(config: Fields) -> Mapping[str, Any]:
    experts = integer(config, "num_local_experts", 1, 2**16)
    return {
        **_NO_BIASES,
        "num_experts": experts,
        "expert_size": integer(config, "intermediate_size", 1, _MAX_WIDTH),
        "experts_per_token": integer(config, "num_experts_per_tok", 1, experts),
        "normalized_experts": True,
    }


def qwen3_moe(config: Fields) -> Mapping[str, Any]:
    return {
        **mixture(config),
        "attention_bias": flag(config, "attention_bias"),
        "dense_layers": _dense_layers(config),
        "expert_size": integer(config, "moe_intermediate_size", 1, _MAX_WIDTH),
        "normalized_experts": flag(config, "norm_topk_prob"),
        "qk_norm": "head",
    }


def qwen2_moe(config: Fields) -> Mapping[str, Any]:
    count = _num_layers(config)
    late = integer(config, "max_window_layers", 0, 2**30)
    windowed = flag(config, "use_sliding_window") and config.get("sliding_window") is not None
    # Every second of the first layers, and not the last ones as in Qwen2.
    kinds = ["full_attention" if i % 2 or i >= late else "sliding_attention" for i in range(count)]
    return {
        **qwen3_moe(config),
        "qk_norm": None,
        "attention_bias": flag(config, "qkv_bias"),
        "output_bias": False,
        "shared_expert_size": integer(config, "shared_expert_intermediate_size", 1, _MAX_WIDTH),
        "layer_types": kinds if windowed else None,
    }


def _dense_layers(config: Fields) -> frozenset[int]:
    """Every layer but each n-th, and those that are listed."""
    count, step = _num_layers(config), integer(config, "decoder_sparse_step", 1, 2**30)
    listed = config.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or len(listed) > count:
        raise bad("mlp_only_layers", f"a list of at most {count} numbers", listed)
    dense = {integer({"mlp_only_layers": i}, "mlp_only_layers", 0, count - 1) for i in listed}
    return frozenset(dense | {i for i in range(count) if (i + 1) % step})


def gpt_oss(config: Fields) -> Mapping[str, Any]:
    # What the experts' gate is, whatever `hidden_act` says.
    alpha = number(config, "swiglu_alpha", above=0.0, below=1e3)
    if alpha != 1.702:
        raise bad("swiglu_alpha", "1.702", alpha)
    return {
        **mixture(config),
        "attention_bias": flag(config, "attention_bias"),
        "attention_sinks": True,
        "expert_bias": True,
        "activation": "gelu_sigmoid",
        "interleaved_gate": True,
        "gate_limit": number(config, "swiglu_limit", above=0.0, below=1e6),
        "layer_types": _every_nth_full(config, 2),
    }
