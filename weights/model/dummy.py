"""Configs of published models for random weights, to measure and test without downloads."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.errors import ModelNotFound
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.model.dummy_gemma4 import GEMMA4_CONFIGS
from swiftchat.weights.model.dummy_hybrids import HYBRID_CONFIGS
from swiftchat.weights.model.dummy_llama4 import LLAMA4_CONFIGS
from swiftchat.weights.quantization import mxfp4, nvfp4
from swiftchat.weights.quantization.quantize import (
    FP8_BLOCK,
    QUANTIZABLE,
    W8A8,
    WEIGHT_ONLY,
)
from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, Mxfp4, Nvfp4, Scheme

# With the columns that share a scale; 0: a scale for each row.
_SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "int4": Scheme(Int4, 128),
        "int8": Scheme(Int8),
        "fp8": Scheme(Float8),
        "fp8-block": Scheme(Float8, FP8_BLOCK),
        "mxfp4": Scheme(Mxfp4, mxfp4.GROUP_SIZE),
        "nvfp4": Scheme(Nvfp4, nvfp4.GROUP_SIZE),
    }
)
_SHARED = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def _llama3(
    hidden: int, inner: int, layers: int, heads: int, head_dim: int, rope_factor: float, tied: bool
) -> Mapping[str, Any]:
    """Return the config of a Llama 3.1 or 3.2 model from the fields in which they differ."""
    return MappingProxyType(
        {
            **_SHARED,
            "vocab_size": 128_256,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": head_dim,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": rope_factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": tied,
            "bos_token_id": 128_000,
            "eos_token_id": 128_001,
        }
    )


# The published `config.json` fields by name.
DUMMY_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-3.2-1b": _llama3(2048, 8192, 16, 32, 64, rope_factor=32.0, tied=True),
        "llama-3.1-8b": _llama3(4096, 14_336, 32, 32, 128, rope_factor=8.0, tied=False),
        "llama-3.1-70b": _llama3(8192, 28_672, 80, 64, 128, rope_factor=8.0, tied=False),
        "gemma-3-4b": MappingProxyType(
            {
                "architectures": ["Gemma3ForCausalLM"],
                "torch_dtype": "bfloat16",
                "vocab_size": 262_208,
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 1024,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "max_position_embeddings": 131_072,
                "bos_token_id": 2,
                "eos_token_id": 1,
            }
        ),
        "gpt-oss-20b": MappingProxyType(
            {
                "architectures": ["GptOssForCausalLM"],
                "torch_dtype": "bfloat16",
                "vocab_size": 201_088,
                "hidden_size": 2880,
                "intermediate_size": 2880,
                "num_hidden_layers": 24,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "num_local_experts": 32,
                "num_experts_per_tok": 4,
                "sliding_window": 128,
                "max_position_embeddings": 131_072,
                "rope_theta": 150_000,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 32.0,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                    "original_max_position_embeddings": 4096,
                },
                "bos_token_id": 199_998,
                "eos_token_id": 200_002,
            }
        ),
        "qwen3-30b-a3b": MappingProxyType(
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "torch_dtype": "bfloat16",
                "vocab_size": 151_936,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "max_position_embeddings": 40_960,
                "rope_theta": 1_000_000.0,
                "bos_token_id": 151_643,
                "eos_token_id": 151_645,
            }
        ),
        "deepseek-v2-lite": MappingProxyType(
            {
                "architectures": ["DeepseekV2ForCausalLM"],
                "torch_dtype": "bfloat16",
                "vocab_size": 102_400,
                "hidden_size": 2048,
                "intermediate_size": 10_944,
                "moe_intermediate_size": 1408,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "kv_lora_rank": 512,
                "q_lora_rank": None,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "topk_method": "greedy",
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 1.0,
                "norm_topk_prob": False,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 163_840,
                "rope_theta": 10_000,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                    "original_max_position_embeddings": 4096,
                },
                "bos_token_id": 100_000,
                "eos_token_id": 100_001,
            }
        ),
        "smollm2-135m": MappingProxyType(
            {
                **_SHARED,
                "vocab_size": 49_152,
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "head_dim": 64,
                "max_position_embeddings": 8192,
                "rope_theta": 100_000.0,
                "tie_word_embeddings": True,
                "bos_token_id": 0,
                "eos_token_id": 0,
            }
        ),
        **GEMMA4_CONFIGS,
        **HYBRID_CONFIGS,
        **LLAMA4_CONFIGS,
    }
)


def parse_dummy_name(name: str) -> tuple[str, str | None]:
    """Split `CONFIG:SCHEME`, as in `llama-3.1-8b:int4`; None without a known scheme."""
    config, _, scheme = name.rpartition(":")
    return (config, scheme) if scheme in (*WEIGHT_ONLY, *W8A8) else (name, None)


def dummy_schemes(config: ModelConfig, scheme: str | None) -> dict[str, Scheme]:
    """Return the schemes of the quantized random matrices by Hugging Face name.

    They are the matrices that `convert --quantize` quantizes, int4 in groups of 128 and fp8-block
    with scales for 128 columns of a row; with int4 and int8 also the head in int8, or the
    embeddings that it is tied to. MXFP4 are the experts alone where the file has one tensor for all
    of them, as GPT-OSS's.
    """
    if scheme is None:
        return {}
    kind, shapes = _SCHEMES[W8A8.get(scheme, scheme)], expected_tensors(config)
    head = "embed" if config.head.tied else "lm_head"
    transposed = ARCHITECTURES[config.architecture].transposed
    experts = transposed & {"experts_gate_up", "experts_down"}
    schemes: dict[str, Scheme] = {}
    for place in canonical_tensors(config):
        name = tensor_name(config, *place)
        if scheme == "mxfp4" and experts:
            if place[0] in experts:
                schemes[name] = kind
        elif place[0] in QUANTIZABLE - transposed:
            size, columns = kind.group_size, shapes[name][-1]
            schemes[name] = kind if not size or columns % size == 0 else Scheme(kind[0], columns)
        elif place[0] == head and scheme in ("int4", "int8"):
            schemes[name] = Scheme(Int8)
    return schemes


def dummy_config(name: str) -> ModelConfig:
    """Return the config named in `DUMMY_CONFIGS`, or that of a `config.json` at a path.

    A scheme after the name (`parse_dummy_name`) is ignored.
    """
    name, _ = parse_dummy_name(name)
    fields = DUMMY_CONFIGS.get(name)
    if fields is not None:
        return read_model_config(fields)
    path = user_path(name)
    if not path.is_file():
        raise ModelNotFound(
            f"no dummy config {name!r}, and no such config.json",
            f"known configs: {', '.join(DUMMY_CONFIGS)}",
        )
    return read_model_config(read_json(path))
