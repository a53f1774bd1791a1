"""The keys and tensors that llama.cpp's converter writes for every architecture.

The docstrings name its classes in `conversion/*.py` (`convert_hf_to_gguf.py` before 2026).
llama.cpp (llama-cpp-python 0.3.36) has read these files once: its logits differed from those of
transformers by at most 3e-6 of the largest, or 6e-4 where it uses a half-precision GELU table.
Only Phi-3 differed more, because llama.cpp ignores its window.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Tensors = Iterator[tuple[str, np.ndarray]]
Fields = dict[str, Any]
Converter = tuple[Callable[[Fields], Fields], Callable[[Fields, Fields], Tensors]]


def _rope(config: Fields) -> Fields:
    return config.get("rope_parameters") or {}


def common_keys(config: Fields) -> Fields:
    """TextModel.set_gguf_parameters: the keys of the fields that `config.json` has."""
    keys = {
        "block_count": ("num_hidden_layers",),
        "context_length": ("max_position_embeddings",),
        "embedding_length": ("hidden_size",),
        "feed_forward_length": ("intermediate_size",),
        "attention.head_count": ("num_attention_heads",),
        "attention.head_count_kv": ("num_key_value_heads",),
        "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
        "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon"),
        "expert_count": ("num_local_experts", "num_experts"),
        "expert_used_count": ("num_experts_per_tok",),
        "attention.key_length": ("head_dim",),
        "attention.value_length": ("head_dim",),
    }
    present = {
        key: config[name] for key, names in keys.items() for name in names if config.get(name)
    }
    rope = _rope(config)
    theta = rope.get("full_attention", rope).get("rope_theta")
    local = rope.get("sliding_attention", {}).get("rope_theta")
    return {**present, "rope.freq_base": theta, "rope.freq_base_swa": local}


def rope_scaling(config: Fields) -> Fields:
    """TextModel.set_gguf_parameters for linear and yarn, Phi3MiniModel for longrope."""
    rope = _rope(config).get("full_attention", _rope(config))
    kind = rope.get("rope_type")
    if kind not in ("linear", "yarn"):
        return {}
    return {
        "rope.scaling.type": kind,
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
        "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
    }


def extra_tensors(config: Fields) -> dict[str, np.ndarray]:
    """LlamaModel, Phi3MiniModel and Gemma4Model.generate_extra_tensors."""
    names = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}
    rope = _rope(config)
    full = rope.get("full_attention", {})
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3_divisors(config)}
    if full.get("rope_type") == "proportional":
        pairs = _wide_head_dim(config) // 2
        rotated_pairs = int(pairs * full["partial_rotary_factor"])
        divisors = [1.0] * rotated_pairs + [1e30] * (pairs - rotated_pairs)
        return {"rope_freqs.weight": np.array(divisors, np.float32)}
    return {
        ours: np.array(rope[theirs], np.float32) for ours, theirs in names.items() if theirs in rope
    }


def _llama3_divisors(config: Fields) -> np.ndarray:
    rope, head_dim = _rope(config), _head_dim(config)
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = (rope["original_max_position_embeddings"] / waves - low) / (high - low)
    share = share.clip(0, 1)
    return (1 / ((1 - share) / rope["factor"] + share)).astype(np.float32)


def _wide_head_dim(config: Fields) -> int:
    return next(iter(config["per_layer_config"].values()))["head_dim"]


def _head_dim(config: Fields) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rotated(config: Fields, default: float = 1.0) -> int:
    share = _rope(config).get("partial_rotary_factor", config.get("partial_rotary_factor", default))
    return int(_head_dim(config) * share)


def as_they_are(config: Fields, tensors: Fields) -> Tensors:
    yield from tensors.items()


def _permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute: element j of each half of a head become neighbors."""
    split = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def llama_keys(config: Fields) -> Fields:
    """LlamaModel.set_gguf_parameters; the same for Mistral and Mixtral."""
    return {**common_keys(config), "rope.dimension_count": _head_dim(config)}


def llama(config: Fields, tensors: Fields) -> Tensors:
    """LlamaModel.modify_tensors: permutes queries and keys, merges experts."""
    for name, array in experts(tensors, "block_sparse_moe.experts", ("w1", "w2", "w3")):
        if re.search(r"q_proj\.(weight|bias)$", name):
            array = _permuted(array, config["num_attention_heads"])
        if re.search(r"k_proj\.(weight|bias)$", name):
            array = _permuted(array, config["num_key_value_heads"])
        # The name map has merged experts under another name.
        place = re.fullmatch(r"model\.(layers\.\d+)\.block_sparse_moe\.experts(.*)", name)
        yield f"{place[1]}.feed_forward.experts{place[2]}" if place else name, array


def experts(tensors: Fields, place: str, kinds: tuple[str, ...]) -> Tensors:
    """Merge the experts into one tensor for each matrix, with the expert as first dimension."""
    for name, array in tensors.items():
        if place not in name:
            yield name, array
        elif f"{place}.0." in name:
            kind = next(kind for kind in kinds if kind in name)
            start = name[: name.index(place)]
            count = sum(n.startswith(start + place) and kind in n for n in tensors)
            parts = [tensors[f"{start}{place}.{e}.{kind}.weight"] for e in range(count)]
            yield f"{start}{place}.{kind}.weight", np.stack(parts)


def qwen3moe_keys(config: Fields) -> Fields:
    """Qwen2MoeModel.set_gguf_parameters."""
    return {**common_keys(config), "expert_feed_forward_length": config["moe_intermediate_size"]}


def qwen3moe(config: Fields, tensors: Fields) -> Tensors:
    """Qwen2MoeModel.modify_tensors: merges experts."""
    return experts(tensors, "mlp.experts", ("gate_proj", "up_proj", "down_proj"))


def _phi3_keys(config: Fields) -> Fields:
    """Phi3MiniModel.set_gguf_parameters: no head size, a window of 0 for none."""
    original = config["original_max_position_embeddings"]
    keys = {
        **common_keys(config),
        "rope.dimension_count": rotated(config),
        "rope.scaling.original_context_length": original,
        "attention.sliding_window": config.get("sliding_window") or 0,
        "attention.key_length": None,
        "attention.value_length": None,
    }
    if "long_factor" in _rope(config):
        scale = config["max_position_embeddings"] / original
        longer = scale > 1.0
        keys["rope.scaling.attn_factor"] = (
            float(np.sqrt(1 + np.log(scale) / np.log(original))) if longer else 1.0
        )
    return keys


def _internlm2_keys(config: Fields) -> Fields:
    """InternLM2Model.set_gguf_parameters: neither head size nor rotated dimensions."""
    return {**common_keys(config), "rope.freq_base": config.get("rope_theta", 10000.0)}


def _internlm2(config: Fields, tensors: Fields) -> Tensors:
    """InternLM2Model.modify_tensors: splits wqkv, permutes queries and keys like Llama's."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    for name, array in tensors.items():
        if "attention.wqkv" not in name:
            yield name, array
            continue
        width = array.shape[-1]
        groups = array.reshape(kv_heads, heads // kv_heads + 2, -1, width)
        here = name.replace("attention.wqkv", "self_attn.{}_proj")
        yield here.format("q"), _permuted(groups[:, :-2].reshape(-1, width), heads)
        yield here.format("k"), _permuted(groups[:, -2].reshape(-1, width), kv_heads)
        yield here.format("v"), groups[:, -1].reshape(-1, width)


def _stablelm_keys(config: Fields) -> Fields:
    """StableLMModel.set_gguf_parameters."""
    return {
        **common_keys(config),
        "rope.dimension_count": rotated(config, 0.25),
        "use_parallel_residual": config["use_parallel_residual"],
    }


def _chatglm_keys(config: Fields) -> Fields:
    """ChatGLMModel.set_gguf_parameters: half of a head is rotated; reads both kinds of config."""
    heads = config["num_attention_heads"]
    return {
        "context_length": config.get("seq_length", config.get("max_position_embeddings")),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("ffn_hidden_size", config.get("intermediate_size")),
        "block_count": config.get("num_layers", config.get("num_hidden_layers")),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get(
            "multi_query_group_num", config.get("num_key_value_heads")
        ),
        "attention.layer_norm_rms_epsilon": config.get(
            "layernorm_epsilon", config.get("rms_norm_eps")
        ),
        "rope.dimension_count": config["hidden_size"] // heads // 2,
        "rope.freq_base": 10000.0,
        "tokenizer.ggml.add_bos_token": False,
    }


def _chatglm(config: Fields, tensors: Fields) -> Tensors:
    """ChatGLMModel.modify_tensors: changes names only; merged tensors stay merged."""
    for name, array in tensors.items():
        if not name.endswith("rotary_pos_emb.inv_freq"):
            yield name.removeprefix("transformer."), array


def _glm4_keys(config: Fields) -> Fields:
    """Glm4Model.set_gguf_parameters."""
    return {**common_keys(config), "rope.dimension_count": rotated(config, 0.5)}


def _gemma_keys(config: Fields) -> Fields:
    """GemmaModel.set_gguf_parameters: no frequency base."""
    return {**common_keys(config), "rope.freq_base": None}


def _gemma2_keys(config: Fields) -> Fields:
    """Gemma2Model.set_gguf_parameters: no attention scale."""
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        **_gemma_keys(config),
        **{name: config[name] for name in names},
        "attention.sliding_window": config["sliding_window"],
    }


def _gemma3_keys(config: Fields) -> Fields:
    """Gemma3Model.set_gguf_parameters: no layer types."""
    return {
        **common_keys(config),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "attention.sliding_window": config["sliding_window"],
    }


def _gemma(config: Fields, tensors: Fields) -> Tensors:
    """GemmaModel.modify_tensors: no output matrix, norms with 1 added."""
    for name, array in tensors.items():
        if name != "lm_head.weight":
            yield name, array + np.float32(1) if name.endswith("norm.weight") else array


def _gpt2_keys(config: Fields) -> Fields:
    """GPT2Model.set_gguf_parameters: the MLP is four times as wide as the model."""
    return {
        "block_count": config["n_layer"],
        "context_length": config["n_positions"],
        "embedding_length": config["n_embd"],
        "feed_forward_length": 4 * config["n_embd"],
        "attention.head_count": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def _gpt2(config: Fields, tensors: Fields) -> Tensors:
    """GPT2Model.modify_tensors: transposes Conv1D matrices, omits masks."""
    for name, array in tensors.items():
        transposed = re.search(r"\.c_(attn|proj|fc)\.weight$", name)
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            yield name, array.T if transposed else array


def _gptneox_keys(config: Fields) -> Fields:
    """GPTNeoXModel.set_gguf_parameters: no frequency base, no count of key heads."""
    share = _rope(config).get("partial_rotary_factor", config.get("rotary_pct"))
    return {
        **common_keys(config),
        "attention.head_count_kv": None,
        "rope.freq_base": None,
        "rope.dimension_count": int(share * _head_dim(config)),
        "use_parallel_residual": config["use_parallel_residual"],
    }


def _by_kind(config: Fields, tensors: Fields) -> Tensors:
    """GPTNeoXModel and BloomModel.modify_tensors: all queries, all keys, all values."""
    heads = config.get("num_attention_heads") or config["n_head"]
    for name, array in tensors.items():
        if "query_key_value" in name:
            grouped = array.reshape(heads, 3, -1, *array.shape[1:])
            array = np.concatenate([grouped[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])
        yield name, array


def _phi2_keys(config: Fields) -> Fields:
    """Phi2Model.set_gguf_parameters: assumes an MLP four times as wide, as Phi-2's is."""
    heads = config["num_attention_heads"]
    return {
        **common_keys(config),
        "rope.freq_base": None,
        "rope.dimension_count": rotated(config, 0.5),
        "attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "tokenizer.ggml.add_bos_token": False,
    }


def _bloom_keys(config: Fields) -> Fields:
    """BloomModel.set_gguf_parameters: the hidden size replaces an absent context length."""
    return {
        "context_length": config.get("seq_length", config["hidden_size"]),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": 4 * config["hidden_size"],
        "block_count": config["n_layer"],
        "attention.head_count": config["n_head"],
        "attention.head_count_kv": config["n_head"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def _bloom(config: Fields, tensors: Fields) -> Tensors:
    """BloomModel.modify_tensors: without the prefix, then as GPT-NeoX."""
    for name, array in _by_kind(config, tensors):
        yield name.removeprefix("transformer."), array


def _falcon_keys(config: Fields) -> Fields:
    """FalconModel.set_gguf_parameters: a fixed context, because `config.json` had none."""
    return {
        "context_length": 2048,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": 4 * config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": _falcon_kv_heads(config),
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def _falcon_kv_heads(config: Fields) -> int:
    # For the first models, whose config.json had no num_kv_heads, the converter writes 1. Now
    # transformers writes the field, but ignores it without `new_decoder_architecture`.
    return config["num_kv_heads"] if config["new_decoder_architecture"] else 1


def _falcon(config: Fields, tensors: Fields) -> Tensors:
    """FalconModel.modify_tensors: splits the groups; the norms of 40B only change their names."""
    for name, array in tensors.items():
        if "query_key_value" in name:
            rest = array.shape[1:]
            head_dim = config["hidden_size"] // config["num_attention_heads"]
            groups = array.reshape(_falcon_kv_heads(config), -1, head_dim, *rest)
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            array = np.concatenate([part.reshape(-1, *rest) for part in parts])
        yield name, array


# The functions for keys and for tensors by `general.architecture`.
ARCHS: dict[str, Converter] = {
    "llama": (llama_keys, llama),
    "qwen2": (common_keys, as_they_are),
    "qwen3": (common_keys, as_they_are),
    "qwen3moe": (qwen3moe_keys, qwen3moe),
    "smollm3": (llama_keys, llama),  # SmolLM3Model is a LlamaModel
    "phi3": (_phi3_keys, as_they_are),
    "internlm2": (_internlm2_keys, _internlm2),
    "stablelm": (_stablelm_keys, as_they_are),
    "chatglm": (_chatglm_keys, _chatglm),
    "glm4": (_glm4_keys, as_they_are),
    "gemma": (_gemma_keys, _gemma),
    "gemma2": (_gemma2_keys, _gemma),
    "gemma3": (_gemma3_keys, _gemma),
    "gpt2": (_gpt2_keys, _gpt2),
    "gptneox": (_gptneox_keys, _by_kind),
    "phi2": (_phi2_keys, as_they_are),
    "starcoder2": (common_keys, as_they_are),
    "bloom": (_bloom_keys, _bloom),
    "falcon": (_falcon_keys, _falcon),
}
