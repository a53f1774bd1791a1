"""Tiny random models of every architecture, made with transformers.

Transformers is imported when a model is made: processes that only run models start faster.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tests.support import repacked_models, tiny_chatglm
from tests.support.model_store import stored

if TYPE_CHECKING:
    import transformers

VOCAB_SIZE = 97

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual spread, so that logits differ by more than rounding.
    "initializer_range": 0.2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
}


_GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 256}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
_SU = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.5],
    "long_factor": [1.0, 2.0, 7.5],
}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 7}

# The other architectures: name in transformers, and the sizes of a tiny model.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", {**_WINDOWS, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),  # the fourth layer is not rotated
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi3-short-context": (
        "Phi3",
        {"rope_parameters": _SU, "original_max_position_embeddings": 256},
    ),
    "phi3-long-context": ("Phi3", {"rope_parameters": _SU, "original_max_position_embeddings": 4}),
    "olmo2": ("Olmo2", {}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm-parallel": ("StableLm", {"use_parallel_residual": True}),
    "stablelm-2-12b": ("StableLm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 24}),
    "gemma3": (
        # With the usual pattern all three layers would have a window.
        "Gemma3",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gpt2": ("GPT2", _GPT),
    "gpt-j": ("GPTJ", {**_GPT, "rotary_dim": 4}),
    "gpt-neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "phi": ("Phi", {}),
    "starcoder2": ("Starcoder2", {"sliding_window": 9}),
    "opt": ("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 48}),
    "opt-350m": ("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "bloom": ("Bloom", {"n_layer": 3, "n_head": 6}),
    "falcon-7b": ("Falcon", {}),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-serial": ("Falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon-rw": (
        "Falcon",
        {
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            # With more than four heads bf16 rounds some slopes.
            "num_attention_heads": 4,
            "hidden_size": 32,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 7,
            "swiglu_limit": 1.5,
            "rope_parameters": {**_YARN, "truncate": False, "factor": 32.0},
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8},
    ),
    "qwen3-moe-normalized": (
        "Qwen3Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 8,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "head_dim": 8,
            "mlp_only_layers": [1],
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            **_WINDOWS,
            "max_window_layers": 2,
            "mlp_only_layers": [1],
        },
    ),
}
# One model of each mechanism, for what must hold for any model and does not depend on how the
# architecture names or orders its tensors. Those with a state, latent attention or shared keys and
# values have tests of their own.
MECHANISMS = (
    "qwen3",  # RoPE, grouped heads, RMSNorm, also over the heads, and a gated MLP
    "gpt-oss",  # windows with sinks, YaRN, biases and experts
    "qwen2-moe",  # a shared expert, and layers without experts
    "gemma2",  # soft caps, norms behind the branches, and windows in every second layer
    "falcon-rw",  # ALiBi, LayerNorm, and all heads of a layer in one tensor
    "gpt2",  # learned positions, and matrices [in, out]
    "opt-350m",  # LayerNorm behind the branches, and narrow embeddings
    "chatglm-6b",  # attention in both directions within the prompt, and two rotations
)
# Architectures that the CUDA kernels do not support.
NOT_ON_KERNELS = ("chatglm-6b",)
_CONFIGS = {"Gemma3": "Gemma3TextConfig"}
_MODELS = {"GPT2": "GPT2LMHeadModel"}


def make(variant: str, folder: Path, **sizes: Any) -> None:
    """Put a random fp32 model of this variant in `folder`; `sizes` go before the variant's own.

    Its files are copied if a process of this session of tests has made it. The generator of torch
    starts anew, so that what a test draws next does not depend on other tests.
    """
    made = stored(variant, sizes, lambda made: make_with_reference(variant, made, **sizes))
    shutil.copytree(made, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    torch.manual_seed(20)


def make_with_reference(variant: str, folder: Path, **sizes: Any) -> "transformers.PreTrainedModel":
    """Make the model of `make` in this process, save it in `folder` and return it."""
    import transformers

    if variant in REPACKED:
        return REPACKED[variant](folder)
    family, changes = VARIANTS.get(variant) or FAMILIES[variant]
    name = _CONFIGS.get(family, f"{family}Config")
    config = getattr(transformers, name)(**{**_SIZES, "pad_token_id": 0, **changes, **sizes})
    torch.manual_seed(20)
    # Eager attention honors the sliding window everywhere, but adds Falcon's ALiBi twice.
    config._attn_implementation = "sdpa" if changes.get("alibi") else "eager"
    model = getattr(transformers, _MODELS.get(family, f"{family}ForCausalLM"))(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in name or "ln_" in name:
            mean = 0.0 if family.startswith("Gemma") else 1.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.1)
        elif family in ("OPT", "Falcon") and parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def make_internlm2(folder: Path) -> "transformers.PreTrainedModel":
    """InternLM2 is Llama with queries, keys and values in one tensor, by groups of heads."""
    model = make_with_reference("llama", folder)
    tensors = dict(model.state_dict())
    renamed = {"model.tok_embeddings.weight": tensors.pop("model.embed_tokens.weight")}
    renamed["output.weight"] = tensors.pop("lm_head.weight")
    renamed["model.norm.weight"] = tensors.pop("model.norm.weight")
    for i in range(3):
        here = f"model.layers.{i}."
        q, k, v = (
            tensors.pop(f"{here}self_attn.{name}_proj.weight").view(2, -1, 8, 48) for name in "qkv"
        )
        renamed[f"{here}attention.wqkv.weight"] = torch.cat([q, k, v], 1).reshape(-1, 48)
        for ours, theirs in {
            "attention.wo": "self_attn.o_proj",
            "feed_forward.w1": "mlp.gate_proj",
            "feed_forward.w3": "mlp.up_proj",
            "feed_forward.w2": "mlp.down_proj",
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
        }.items():
            renamed[f"{here}{ours}.weight"] = tensors.pop(f"{here}{theirs}.weight")
    assert not tensors
    rope = {"type": "dynamic", "factor": 2.0}
    _write(folder, "InternLM2ForCausalLM", renamed, bias=False, rope_scaling=rope)
    return model


def make_chatglm(folder: Path) -> "transformers.PreTrainedModel":
    """ChatGLM2 and 3 are transformers' Glm with other tensor names."""
    model = make_with_reference("glm", folder)
    tensors = dict(model.state_dict())
    start = "transformer."
    renamed = {f"{start}embedding.word_embeddings.weight": tensors.pop("model.embed_tokens.weight")}
    renamed[f"{start}output_layer.weight"] = tensors.pop("lm_head.weight")
    renamed[f"{start}encoder.final_layernorm.weight"] = tensors.pop("model.norm.weight")
    renamed[f"{start}rotary_pos_emb.inv_freq"] = torch.zeros(2)
    for i in range(3):
        here, there = f"model.layers.{i}.", f"{start}encoder.layers.{i}."
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{here}self_attn.{name}_proj.{kind}") for name in "qkv"]
            renamed[f"{there}self_attention.query_key_value.{kind}"] = torch.cat(parts)
        for ours, theirs in {
            "self_attention.dense": "self_attn.o_proj",
            "mlp.dense_h_to_4h": "mlp.gate_up_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj",
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
        }.items():
            renamed[f"{there}{ours}.weight"] = tensors.pop(f"{here}{theirs}.weight")
    assert not tensors
    _write(
        folder,
        "ChatGLMModel",
        renamed,
        padded_vocab_size=VOCAB_SIZE,
        num_layers=3,
        ffn_hidden_size=80,
        kv_channels=8,
        seq_length=256,
        add_qkv_bias=True,
        rmsnorm=True,
        layernorm_epsilon=model.config.rms_norm_eps,
        multi_query_attention=True,
        multi_query_group_num=2,
        post_layer_norm=True,
        add_bias_linear=False,
    )
    return model


def _write(folder: Path, architecture: str, tensors: dict[str, torch.Tensor], **own: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    known = {"hidden_size", "num_attention_heads", "bos_token_id", "eos_token_id"}
    if architecture != "ChatGLMModel":
        known |= {*_SIZES, "rms_norm_eps"}
    kept = {key: value for key, value in config.items() if key in known}
    (folder / "config.json").write_text(
        json.dumps({**kept, **own, "architectures": [architecture]})
    )
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


# Architectures that transformers lacks: repacked from others, or with a reference of their own.
REPACKED: dict[str, Callable[[Path], Any]] = {
    "internlm2": make_internlm2,
    "chatglm3": make_chatglm,
    "exaone": lambda folder: repacked_models.exaone(make_with_reference("llama", folder), folder),
    "minicpm": repacked_models.minicpm,
    "ling": repacked_models.ling,
    "chatglm-6b": lambda folder: tiny_chatglm.make(folder, VOCAB_SIZE),
}
