"""Tiny GGUF files of every architecture, written as llama.cpp's converter writes them.

The names of tensors and keys come from llama.cpp's `gguf` package, the values from
`converter`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

import gguf
from swiftchat.weights.convert.convert import convert
from tests.support import tiny
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.converter import ARCHS, Fields, extra_tensors, rope_scaling
from tests.support.gguf.experts import EXPERT_ARCHS
from tests.support.gguf.latent import LATENT_ARCHS
from tests.support.gguf.mixers import MIXER_ARCHS
from tests.support.gguf.recent import RECENT_ARCHS
from tests.support.gguf.unlisted import NAMES_OF, UNLISTED_ARCHS
from tests.support.model_store import stored
from tests.support.reference import copy_reference, edit_config, make_reference

CONVERTERS = ARCHS | RECENT_ARCHS | EXPERT_ARCHS | LATENT_ARCHS | MIXER_ARCHS | UNLISTED_ARCHS
VOCABULARY: Fields = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": tiny_gguf.TOKENS[: tiny.VOCAB_SIZE],
    "tokenizer.ggml.token_type": [1] * tiny.VOCAB_SIZE,
    "tokenizer.ggml.merges": tiny_gguf.MERGES[:2],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
}

# For each case: the model in `tiny`, the architecture, and changes to its config.json for fields
# that a GGUF file cannot represent.
_HEAD = {"query_pre_attn_scalar": 8}
_NO_FACTOR = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.5],
    "long_factor": [1.0, 2.0, 7.5],
}
_ONE_STRETCHED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
_YARN_IN_FULL: dict[str, dict[str, Any]] = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 5e5,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
_HALF_IN_FULL = {
    **_YARN_IN_FULL,
    "full_attention": {**_YARN_IN_FULL["full_attention"], "partial_rotary_factor": 0.5},
}
_LATENT_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
_GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_LLAMA4 = {
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "no_rope_layers": [1, 1, 1, 0],
    "layer_types": [*["chunked_attention"] * 3, "full_attention"],
}
# As transformers, which takes no other base of the rotation from here.
_DBRX = {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 10_000.0}
# The converter multiplies the weights, so the file has no multipliers.
_PLAIN_FALCON_H1 = {
    **{f"{name}_multiplier": 1.0 for name in ("key", "lm_head", "embedding")},
    **{f"{name}_multiplier": 1.0 for name in ("attention_in", "attention_out")},
    **{f"ssm_{name}_multiplier": 1.0 for name in ("in", "out")},
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0] * 2,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama-biases": ("llama-biases", "llama", {}),
    "llama-wide-heads": ("llama-wide-heads", "llama", {}),
    "llama-linear-rope": ("linear-rope", "llama", {}),
    "mistral": ("mistral", "llama", {}),
    "mixtral": ("mixtral", "llama", {}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen2-yarn": ("qwen2-yarn", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {}),
    "qwen3moe": ("qwen3-moe-normalized", "qwen3moe", {}),
    "smollm3": ("smollm3", "smollm3", {}),
    "phi3": ("phi3", "phi3", {}),
    "phi3-longrope": ("phi3-long-context", "phi3", {"rope_parameters": _NO_FACTOR}),
    "olmo2": ("olmo2", "olmo2", {}),
    "internlm2": ("internlm2", "internlm2", {}),
    "granite": ("granite", "granite", {}),
    "minicpm": ("granite", "minicpm", {"attention_multiplier": 8**-0.5}),
    "exaone": ("llama", "exaone", {}),
    "apertus": ("apertus", "apertus", {}),
    "arcee": ("arcee", "arcee", {}),
    "command-r": ("cohere", "command-r", {}),
    "cohere2": ("cohere2", "cohere2", {}),
    "exaone4": ("exaone4", "exaone4", {}),
    "olmo": ("olmo", "olmo", {}),
    "olmo3": ("olmo3", "olmo2", {}),
    "olmoe": ("olmoe", "olmoe", {}),
    "nemotron": ("nemotron", "nemotron", {}),
    "seed_oss": ("seed_oss", "seed_oss", {}),
    "ernie4_5": ("ernie4_5", "ernie4_5", {}),
    "ernie4_5-moe": ("ernie4_5_moe", "ernie4_5-moe", {}),
    "hunyuan-dense": ("hunyuan_v1_dense", "hunyuan-dense", {}),
    "qwen2moe": ("qwen2_moe", "qwen2moe", {}),
    "mistral3": ("ministral3", "mistral3", {"rope_parameters": _GROWING}),
    "hunyuan-moe": ("hunyuan_v1_moe", "hunyuan-moe", {}),
    "exaone-moe": ("exaone_moe", "exaone-moe", {}),
    "jamba": ("jamba", "jamba", {}),
    "gemma3n": ("gemma3n_text", "gemma3n", {}),
    "qwen2vl": ("qwen2", "qwen2vl", {}),
    "qwen3vl": ("qwen3", "qwen3vl", {}),
    "qwen3vlmoe": ("qwen3-moe-normalized", "qwen3vlmoe", {}),
    "qwen3next": ("qwen3_next", "qwen3next", {}),
    "qwen35": ("qwen3_5_text", "qwen35", {}),
    "qwen35moe": ("qwen3_5_moe_text", "qwen35moe", {}),
    "glm4moe": ("glm4_moe", "glm4moe", {}),
    "dots1": ("dots1", "dots1", {}),
    "bailingmoe2": ("glm4_moe", "bailingmoe2", {}),
    "hunyuan_vl": ("hunyuan_v1_dense", "hunyuan_vl", {}),
    "minimax-m2": ("minimax_m2", "minimax-m2", {}),
    "lfm2": ("lfm2", "lfm2", {"intermediate_size": 256, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("lfm2_moe", "lfm2moe", {}),
    "granitehybrid": ("granitemoehybrid", "granitehybrid", {}),
    "nemotron_h": ("nemotron_h", "nemotron_h", {"time_step_min": 0.001}),
    "nemotron_h_moe": ("nemotron_h", "nemotron_h_moe", {"time_step_min": 0.001}),
    "falcon-h1": ("falcon_h1", "falcon-h1", _PLAIN_FALCON_H1),
    "mamba": ("mamba", "mamba", {}),
    "falcon-mamba": ("falcon_mamba", "mamba", {}),
    "mamba2": ("mamba2", "mamba2", {}),
    "granitemoe": ("granitemoe", "granitemoe", {}),
    "phimoe": ("phimoe", "phimoe", {}),
    "gpt-oss": ("gpt-oss", "gpt-oss", {"swiglu_limit": 7.0}),
    "deepseek2": ("deepseek_v2", "deepseek2", {}),
    "deepseek2-v3": ("deepseek_v3", "deepseek2", {"rope_parameters": _LATENT_YARN}),
    "deepseek2-glm": ("glm4_moe_lite", "deepseek2", {}),
    "deepseek2-youtu": ("youtu", "deepseek2", {}),
    "mistral4": (
        "mistral4",
        "mistral4",
        {"rope_parameters": _GROWING},
    ),
    "glm-dsa": ("glm_moe_dsa", "glm-dsa", {}),
    "kimi-linear": ("kimi_linear", "kimi-linear", {}),
    "afmoe": ("afmoe", "afmoe", {"mup_enabled": True}),
    "dbrx": ("dbrx", "dbrx", {"attn_config": _DBRX}),
    "mimo2": ("mimo_v2_flash", "mimo2", {"routed_scaling_factor": 1.0}),
    "bitnet": ("bitnet", "bitnet", {}),
    "hy_v3": ("hy_v3", "hy_v3", {}),
    "mellum": ("mellum", "mellum", {"rope_parameters": _YARN_IN_FULL}),
    "laguna": (
        "laguna",
        "laguna",
        {"moe_router_logit_softcapping": 0.0, "rope_parameters": _HALF_IN_FULL},
    ),
    "laguna-gate-per-element": ("laguna", "laguna", {"moe_router_logit_softcapping": 0.0}),
    "cohere2moe": ("cohere2_moe", "cohere2moe", {}),
    "cohere2moe-softmax": ("cohere2_moe", "cohere2moe", {}),
    "granite_swa": ("granite_swa", "granite_swa", {}),
    "granite_swa-experts": ("granitemoe_swa", "granite_swa", {}),
    "deepseek32": ("deepseek_v32", "deepseek32", {"rope_parameters": _LATENT_YARN}),
    "bailingmoe3": ("bailing_hybrid", "bailingmoe3", {}),
    "mpt": ("mpt", "mpt", {}),
    "jais2": ("jais2", "jais2", {}),
    "minicpm3": ("minicpm3", "minicpm3", {"dim_model_base": 256}),
    "stablelm": ("stablelm", "stablelm", {}),
    "stablelm-parallel": ("stablelm-parallel", "stablelm", {}),
    "glm": ("glm", "chatglm", {}),
    "chatglm3": ("chatglm3", "chatglm", {}),
    "glm4": ("glm4", "glm4", {}),
    "gemma": ("gemma", "gemma", {}),
    "gemma2": ("gemma2", "gemma2", _HEAD),
    "gemma3": ("gemma3", "gemma3", _HEAD),
    "gemma3-stretched": ("gemma3", "gemma3", _HEAD | {"rope_parameters": _ONE_STRETCHED}),
    "gemma4": ("gemma4_text", "gemma4", {}),
    "llama4": ("llama4_text", "llama4", _LLAMA4),
    "gpt2": ("gpt2", "gpt2", {}),
    "gptneox": ("gpt-neox", "gptneox", {}),
    "gptneox-serial": ("gpt-neox-serial", "gptneox", {}),
    "phi2": ("phi", "phi2", {}),
    "starcoder2": ("starcoder2", "starcoder2", {"sliding_window": None}),
    "bloom": ("bloom", "bloom", {"seq_length": 256}),
    "falcon-7b": ("falcon-7b", "falcon", {"max_position_embeddings": 2048}),
    "falcon-40b": ("falcon-40b", "falcon", {"max_position_embeddings": 2048}),
    "falcon-11b": ("falcon-11b", "falcon", {"max_position_embeddings": 2048}),
}
# Three value heads for a key head: with two, an order would be its own inverse.
_VALUE_HEADS = {"linear_num_value_heads": 6}
_MADE_WITH: dict[str, Fields] = {
    "gemma3n": {"altup_num_inputs": 4, "vocab_size_per_layer_input": 97},
    "bitnet": {"tie_word_embeddings": True},
    # As published, with experts in every layer.
    "mellum": {"mlp_layer_types": ["sparse"] * 4},
    # The loader's period; every layer has a bias or none.
    "laguna": {"layer_types": ["full_attention", *["sliding_attention"] * 3]},
    "laguna-gate-per-element": {
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "num_attention_heads_per_layer": None,
        "gating": "per-element",
        "attention_bias": False,
    },
    "cohere2moe-softmax": {
        "expert_selection_fn": "softmax",
        "num_shared_experts": 0,
        "rms_norm_eps": 1e-5,
    },
    # All layers that rotate have one base.
    "granite_swa-experts": {"layer_rope_theta": [300.0, 300.0, 0, 300.0]},
    "bailingmoe3": {"attention_bias": False},
    "qwen3next": _VALUE_HEADS,
    "qwen35": _VALUE_HEADS,
    "qwen35moe": _VALUE_HEADS,
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
}
# Keys that llama.cpp's loader reads but its converter does not write.
_THIRD = {"attention.sliding_window_pattern": 3}
_MORE_KEYS = {"gemma3": _THIRD, "gemma3-stretched": _THIRD}


def copy_case(name: str, folder: Path) -> None:
    """Put the model of a case in `folder`; its files are copied if they have been made."""
    variant, _, changes = CASES[name]
    if variant in {*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED}:
        tiny.make(variant, folder)
    else:
        copy_reference(variant, folder, **_MADE_WITH.get(name, {}))
    if changes:
        edit_config(folder, **changes)


def made(name: str, folder: Path) -> transformers.PreTrainedModel:
    """Save the model of a case in `folder` and return it."""
    variant, _, changes = CASES[name]
    if variant in {*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED}:
        reference = tiny.make_with_reference(variant, folder)
    else:
        reference = make_reference(variant, folder, **_MADE_WITH.get(name, {}))
    if not changes:
        return reference
    edit_config(folder, **changes)
    return loaded(folder)


def converted_case(name: str) -> Path:
    """Return a folder with the model of a case, `theirs`, `model.gguf` and its conversion, `ours`.

    It is made once for all tests, which must not change it.
    """

    def make(folder: Path) -> None:
        copy_case(name, folder / "theirs")
        write_case(name, folder / "model.gguf", folder / "theirs")
        convert(folder / "model.gguf", folder / "ours", dtype="float32")

    return stored(f"gguf-{name}", {}, make)


def loaded(folder: Path) -> transformers.PreTrainedModel:
    names = json.loads((folder / "config.json").read_text())["architectures"]
    cls = getattr(transformers, names[0])  # not all belong to `AutoModelForCausalLM`
    model: transformers.PreTrainedModel = cls.from_pretrained(folder, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    """Return the logits of a fixed prompt: [12, vocab_size]."""
    return model(torch.tensor([tiny.random_ids(12)])).logits[0]


def write_case(name: str, path: Path, folder: Path, **changes: Any) -> None:
    """Write the model of a case; `changes` as for `write`."""
    metadata = _MORE_KEYS.get(name, {}) | changes.pop("metadata", {})
    write(path, folder, CASES[name][1], metadata=metadata, **changes)


def write(
    path: Path,
    folder: Path,
    arch: str,
    *,
    metadata: Fields | None = None,
    without: tuple[str, ...] = (),
    tensors: dict[str, np.ndarray] | None = None,
    raw_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Write the model of the Hugging Face directory `folder`.

    `metadata` replaces (None: removes) keys, given without the architecture; `tensors` replaces
    tensors by their GGUF names, `without` omits some. Matrices become `raw_type` if their rows
    are whole blocks of it, otherwise F16.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    keys, change = CONVERTERS[arch]
    own = {**keys(config), **rope_scaling(config), **(metadata or {})}
    named = {k if k.startswith("tokenizer.") else f"{arch}.{k}": v for k, v in own.items()}
    for key, value in (VOCABULARY | named).items():
        if value is not None:
            tiny_gguf.add(writer, key, value)
    listed = NAMES_OF.get(arch, arch)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == listed)
    names = gguf.get_tensor_name_map(kind, own["block_count"])
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, array in change(config, load_file(file)):
            if name.startswith(f"{arch}."):  # a list of numbers in the metadata
                if name not in named:
                    tiny_gguf.add(writer, name, array.tolist())
                continue
            translated = names.get_name(name, try_suffixes=(".weight", ".bias"))
            translated = name if name.startswith("blk.") else translated
            assert translated, f"{name} is not a tensor name in llama.cpp"
            found[translated] = array
    for name, array in (found | extra_tensors(config) | (tensors or {})).items():
        if name not in without:
            _add_tensor(writer, name, np.ascontiguousarray(array), raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, array: np.ndarray, raw_type: gguf.GGMLQuantizationType
) -> None:
    # TextModel.prepare_tensors: vectors and norms stay F32; matrices that do not fill whole blocks
    # become F16.
    if array.ndim == 1 or raw_type == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, array.astype(np.float32))
    elif array.shape[-1] % gguf.GGML_QUANT_SIZES[raw_type][0]:
        writer.add_tensor(name, array.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quantize(array, raw_type), raw_dtype=raw_type)
