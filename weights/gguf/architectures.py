"""The architectures of GGUF files: which model each becomes, and the config fields it stores.

Source: llama.cpp's converter and loader, and the tensor names of its `gguf` package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.architecture import Architecture, frozen, tensor_names
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.fields import MAX_LAYERS
from swiftchat.weights.architectures.registry import ARCHITECTURES, unknown_name
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.metadata import Metadata, is_size

__all__ = ["GGUF_ARCHITECTURES", "GgufArchitecture", "gguf_architecture"]

# llama.cpp recognizes the 27B models by their number of layers. Only their attention scores are
# scaled by hidden size / heads instead of the head size.
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62

_TENSORS = tensor_names(
    {
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "qkv": "attn_qkv.weight",
        "o": "attn_output.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "gate_up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "router": "ffn_gate_inp.weight",
        "expert_gate": "ffn_gate_exps.weight",
        "expert_up": "ffn_up_exps.weight",
        "expert_down": "ffn_down_exps.weight",
        "expert_gate_up": "ffn_gate_up_exps.weight",
        "attn_norm": "attn_norm.weight",
        "mlp_norm": "ffn_norm.weight",
        "attn_norm_bias": "attn_norm.bias",
        "mlp_norm_bias": "ffn_norm.bias",
        "attn_out_norm": "post_attention_norm.weight",
        "mlp_out_norm": "post_ffw_norm.weight",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "qkv_bias": "attn_qkv.bias",
        "o_bias": "attn_output.bias",
        "gate_bias": "ffn_gate.bias",
        "up_bias": "ffn_up.bias",
        "down_bias": "ffn_down.bias",
    },
    embed="token_embd.weight",
    embed_norm="token_embd_norm.weight",
    embed_norm_bias="token_embd_norm.bias",
    positions="position_embd.weight",
    final_norm="output_norm.weight",
    final_norm_bias="output_norm.bias",
    lm_head="output.weight",
    lm_head_bias="output.bias",
    layer="blk.{i}.",
)
_PERMUTED = frozenset({"q", "k", "q_bias", "k_bias"})
_WITHOUT_ROPE = frozenset({"rope_theta", "partial_rotary_factor"})
_ONE_HEAD_SIZE = frozenset({"head_dim"})
_ONE_HEAD_COUNT = frozenset({"num_key_value_heads"})


def _no_fields(metadata: Metadata) -> Mapping[str, Any]:
    return {}


def _attention_bias(metadata: Metadata) -> bool:
    return metadata.has_tensor("attn_q.bias", "attn_qkv.bias")


def _llama(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": _attention_bias(metadata),
        "mlp_bias": metadata.has_tensor("ffn_up.bias"),
    }


def _mixtral(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "num_local_experts": metadata.get("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
    }


def _qwen3moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": _attention_bias(metadata),
        "num_experts": metadata.require("expert_count"),
        "num_experts_per_tok": metadata.require("expert_used_count"),
        "intermediate_size": metadata.get("feed_forward_length"),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length"),
        # llama.cpp always normalizes; there is no key.
        "norm_topk_prob": True,
    }


def _gemma2(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **_gemma(metadata, _GEMMA2_27B_LAYERS),
        "sliding_window": metadata.get("attention.sliding_window", 4096),
    }


def _gemma3(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **_gemma(metadata, _GEMMA3_27B_LAYERS),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
    }


def _gemma(metadata: Metadata, layers_of_27b: int) -> dict[str, Any]:
    hidden, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    scalar = metadata.head_dim
    if metadata.get("block_count") == layers_of_27b and is_size(hidden) and is_size(heads):
        scalar = hidden // heads
    return {
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "layer_types": _layer_types(metadata),
    }


def _layer_types(metadata: Metadata) -> list[str] | None:
    """Return the type of each layer; None if the file leaves it to the architecture.

    The pattern is either n (every nth layer has full attention) or a flag per layer (windowed).
    """
    pattern, count = metadata.get("attention.sliding_window_pattern"), metadata.get("block_count")
    if pattern is None or not is_size(count) or count > MAX_LAYERS:
        return None
    if type(pattern) is int and pattern >= 0:
        pattern = [pattern == 0 or (i + 1) % pattern != 0 for i in range(count)]
    if not isinstance(pattern, list) or len(pattern) != count:
        raise BadModelFile(
            f"{metadata.file.path}: {metadata.name}.attention.sliding_window_pattern must be "
            f"a number or a list of {count} flags"
        )
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def _stablelm(metadata: Metadata) -> Mapping[str, Any]:
    # Older files lack the key; llama.cpp also decides by the norm.
    return {
        "use_qkv_bias": _attention_bias(metadata),
        "use_parallel_residual": not metadata.has_tensor("ffn_norm.weight"),
    }


def _glm(metadata: Metadata) -> Mapping[str, Any]:
    return {"attention_bias": _attention_bias(metadata)}


def _gptneox(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "attention_bias": _attention_bias(metadata),
        "use_parallel_residual": metadata.get("use_parallel_residual", True),
    }


def _starcoder2(metadata: Metadata) -> Mapping[str, Any]:
    return {"use_bias": _attention_bias(metadata)}


def _falcon(metadata: Metadata) -> Mapping[str, Any]:
    heads, kv_heads = metadata.get("attention.head_count"), metadata.get("attention.head_count_kv")
    two_norms = metadata.has_tensor("attn_norm_2.weight")
    return {
        "new_decoder_architecture": two_norms or kv_heads not in (1, heads, None),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads,
        "parallel_attn": True,
        "bias": _attention_bias(metadata),
    }


@dataclass(frozen=True)
class GgufArchitecture:
    """One `general.architecture` as data.

    `class_name` is the Hugging Face class that its models become. `config_fields` returns the
    fields of `config.json` beyond those of every model; None values are left out, so that the
    defaults of the class apply. `absent_keys` are standard fields that the class does not have;
    `renamed` replaces the class's own `Architecture.renamed`.

    `permuted` tensors store the rows of each head in the order for interleaved rotary
    embeddings. `separate_norm_tensors` are the names that differ where attention and MLP read
    the same residual stream through a norm each. In every GGUF file norms with a unit offset are
    stored with 1 added, matrices are [out, in], and merged q/k/v are stored as all queries, all
    keys, all values.
    """

    class_name: str
    config_fields: Callable[[Metadata], Mapping[str, Any]] = _llama
    permuted: frozenset[str] = frozenset()
    absent_keys: frozenset[str] = frozenset()
    renamed: Mapping[str, str] | None = None
    separate_norm_tensors: Mapping[str, str] = field(default_factory=frozen)

    @property
    def target(self) -> Architecture:
        """The table entry of `class_name`."""
        return ARCHITECTURES[self.class_name]

    def tensor_name(self, config: ModelConfig, canonical: str) -> str:
        """Return the GGUF name of a canonical tensor, with `{i}` for the layer."""
        separate_norms = config.parallel_residual and not config.shared_norm
        names = self.separate_norm_tensors if separate_norms else {}
        return names.get(canonical, _TENSORS[canonical])

    def config_key(self, standard: str) -> str:
        """Return the key of a standard field in the model's `config.json`."""
        renamed = self.target.renamed if self.renamed is None else self.renamed
        return renamed.get(standard, standard)


# Mistral models have the architecture llama.
GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        "llama": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "qwen2": GgufArchitecture("Qwen2ForCausalLM"),
        "qwen3": GgufArchitecture("Qwen3ForCausalLM"),
        "qwen3moe": GgufArchitecture("Qwen3MoeForCausalLM", _qwen3moe),
        "smollm3": GgufArchitecture("SmolLM3ForCausalLM", permuted=_PERMUTED),
        "phi3": GgufArchitecture("Phi3ForCausalLM"),
        "olmo2": GgufArchitecture("Olmo2ForCausalLM"),
        # With separate q, k and v it is a Llama, whose class is part of transformers.
        "internlm2": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "stablelm": GgufArchitecture("StableLmForCausalLM", _stablelm, absent_keys=_ONE_HEAD_SIZE),
        # ChatGLM2 and ChatGLM3 too: they are equivalent to transformers' GLM.
        "chatglm": GgufArchitecture("GlmForCausalLM", _glm),
        "glm4": GgufArchitecture("Glm4ForCausalLM", _glm),
        "gemma": GgufArchitecture("GemmaForCausalLM", _no_fields),
        "gemma2": GgufArchitecture("Gemma2ForCausalLM", _gemma2),
        "gemma3": GgufArchitecture("Gemma3ForCausalLM", _gemma3),
        "gpt2": GgufArchitecture(
            "GPT2LMHeadModel",
            _no_fields,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "gptneox": GgufArchitecture(
            "GPTNeoXForCausalLM",
            _gptneox,
            absent_keys=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "phi2": GgufArchitecture("PhiForCausalLM", _no_fields, absent_keys=_ONE_HEAD_SIZE),
        "starcoder2": GgufArchitecture(
            "Starcoder2ForCausalLM", _starcoder2, absent_keys=_ONE_HEAD_SIZE
        ),
        "bloom": GgufArchitecture(
            "BloomForCausalLM",
            _no_fields,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT | {"hidden_act"},
            renamed=MappingProxyType(
                {
                    "num_hidden_layers": "n_layer",
                    "num_attention_heads": "n_head",
                    "max_position_embeddings": "seq_length",
                    "rms_norm_eps": "layer_norm_epsilon",
                }
            ),
        ),
        "falcon": GgufArchitecture(
            "FalconForCausalLM",
            _falcon,
            absent_keys=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
            renamed=MappingProxyType(
                {
                    "intermediate_size": "ffn_hidden_size",
                    "rms_norm_eps": "layer_norm_epsilon",
                    "hidden_act": "activation",
                }
            ),
            separate_norm_tensors=MappingProxyType(
                {
                    "attn_norm": "blk.{i}.attn_norm_2.weight",
                    "attn_norm_bias": "blk.{i}.attn_norm_2.bias",
                    "mlp_norm": "blk.{i}.attn_norm.weight",
                    "mlp_norm_bias": "blk.{i}.attn_norm.bias",
                }
            ),
        ),
    }
)
# Mixtral's files have the architecture llama and a number of experts.
_MIXTRAL = GgufArchitecture("MixtralForCausalLM", _mixtral, permuted=_PERMUTED)


def gguf_architecture(file: GgufFile) -> tuple[GgufArchitecture, Metadata]:
    """Return the architecture of `file` and its metadata.

    Raises `BadModelFile` for an unknown architecture.
    """
    name = str(file.metadata.get("general.architecture"))
    if name not in GGUF_ARCHITECTURES:
        error = unknown_name("GGUF architecture", name, sorted(GGUF_ARCHITECTURES))
        raise BadModelFile(f"{file.path}: {error.message}", error.hint)
    metadata = Metadata(file, name)
    if name == "llama" and metadata.get("expert_count"):
        return _MIXTRAL, metadata
    return GGUF_ARCHITECTURES[name], metadata
