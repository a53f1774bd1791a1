"""`config.json` from the arguments of a Megatron-LM checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile

Args = Mapping[str, Any]


def make_config_json(
    source: Path, args: Args, padded_vocab_size: int, dtype: str
) -> dict[str, Any]:
    """Return the config of a Llama, or of a GPT-2 if the MLP has no gate.

    Raises `BadModelFile` with the arguments that these architectures do not support.
    """
    is_llama = bool(args.get("swiglu"))
    checks = _common_checks(args) | (_llama_checks(args) if is_llama else _gpt2_checks(args))
    unsupported = [name for name, is_unsupported in checks.items() if is_unsupported]
    if unsupported:
        name = "Llama" if is_llama else "GPT-2 (swiglu is not set)"
        raise BadModelFile(
            f"{source}: not like {name}, or saved in another order: args {', '.join(unsupported)}",
            "convert it with Megatron-LM's own tools and then load the result",
        )
    vocab_size = args.get("vocab_size")
    common = {
        "vocab_size": padded_vocab_size if vocab_size is None else vocab_size,
        "tie_word_embeddings": not args.get("untie_embeddings_and_output_weights"),
        "torch_dtype": dtype,
    }
    return {**common, **(_llama(args) if is_llama else _gpt2(args))}


def _llama(args: Args) -> dict[str, Any]:
    heads = args.get("num_attention_heads")
    grouped = args.get("group_query_attention")
    bias = bool(args.get("add_bias_linear", True))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.get("hidden_size"),
        "intermediate_size": args.get("ffn_hidden_size"),
        "num_hidden_layers": args.get("num_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": args.get("num_query_groups") if grouped else heads,
        "head_dim": args.get("kv_channels"),
        "max_position_embeddings": args.get("max_position_embeddings"),
        "rms_norm_eps": _epsilon(args),
        "hidden_act": "silu",
        "rope_theta": args.get("rotary_base", 10_000),
        "attention_bias": bias,
        "mlp_bias": bias,
    }


def _gpt2(args: Args) -> dict[str, Any]:
    # Megatron-LM's fused bias and GELU uses the tanh approximation.
    by_tanh = args.get("bias_gelu_fusion", True) or args.get("openai_gelu")
    fields = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": args.get("hidden_size"),
        "n_inner": args.get("ffn_hidden_size"),
        "n_layer": args.get("num_layers"),
        "n_head": args.get("num_attention_heads"),
        "n_positions": args.get("max_position_embeddings"),
        "layer_norm_epsilon": _epsilon(args),
        "activation_function": "gelu_new" if by_tanh else "gelu",
    }
    # The checkpoint has no vocabulary, so the end tokens are unknown.
    end_tokens = {"bos_token_id": None, "eos_token_id": None}
    return {name: value for name, value in fields.items() if value is not None} | end_tokens


def _epsilon(args: Args) -> Any:
    return args.get("norm_epsilon", args.get("layernorm_epsilon"))


def _common_checks(args: Args) -> dict[str, bool]:
    """Return whether each argument has an unsupported value, for both architectures."""
    return {
        "apply_layernorm_1p": bool(args.get("apply_layernorm_1p")),
        "apply_residual_connection_post_layernorm": bool(
            args.get("apply_residual_connection_post_layernorm")
        ),
        "add_qkv_bias": bool(args.get("add_qkv_bias")) and not args.get("add_bias_linear", True),
        "num_experts": args.get("num_experts") is not None,
        "multi_latent_attention": bool(args.get("multi_latent_attention")),
        "qk_layernorm": bool(args.get("qk_layernorm")),
        "virtual_pipeline_model_parallel_size": args.get("virtual_pipeline_model_parallel_size")
        is not None,
    }


def _has_rope(args: Args) -> bool:
    return args.get("position_embedding_type") == "rope" or bool(
        args.get("use_rotary_position_embeddings")
    )


def _llama_checks(args: Args) -> dict[str, bool]:
    return {
        "normalization": args.get("normalization") != "RMSNorm",
        "position_embedding_type": not _has_rope(args),
        "rotary_percent": args.get("rotary_percent", 1.0) != 1.0,
        "rotary_interleaved": bool(args.get("rotary_interleaved")),
        "use_rope_scaling": bool(args.get("use_rope_scaling")),
    }


def _gpt2_checks(args: Args) -> dict[str, bool]:
    positions = args.get("position_embedding_type", "learned_absolute")
    return {
        "normalization": args.get("normalization", "LayerNorm") != "LayerNorm",
        "position_embedding_type": _has_rope(args) or positions != "learned_absolute",
        "add_bias_linear": not args.get("add_bias_linear", True),
        "group_query_attention": bool(args.get("group_query_attention")),
        "squared_relu": bool(args.get("squared_relu")),
        "quick_geglu": bool(args.get("quick_geglu")),
    }
