"""What GGUF files of single architectures say beside the usual: fields of `config.json`.

None is what the file does not say, and the class in transformers assumes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.gguf import GgufFile

_MAX_LAYERS = 2048
# llama.cpp knows the models with 27 billion parameters by their layers. Only they divide scores
# by the root of what a head's share of the width is, not by that of its size.
_LAYERS_OF_GEMMA2_27B = 46
_LAYERS_OF_GEMMA3_27B = 62


@dataclass(frozen=True)
class Said:
    """The metadata of `file` under the name of its architecture, `arch`."""

    file: GgufFile
    arch: str

    def get(self, key: str, default: object = None) -> Any:
        """The value of `arch.key`, a number as `shortest` has it."""
        return shortest(self.file.metadata.get(f"{self.arch}.{key}", default))

    def needed(self, key: str) -> Any:
        """The value of `arch.key`; `BadModelFile` where there is none."""
        value = self.get(key)
        if value is None:
            raise BadModelFile(f"{self.file.path}: {self.arch}.{key} is missing")
        return value

    def has(self, *names: str) -> bool:
        """Whether the first layer has one of these tensors."""
        return any(f"blk.0.{name}" in self.file.tensors for name in names)

    @property
    def head_dim(self) -> Any:
        """The size of a head: as the file says, or each head's share of the width."""
        hidden, heads = self.get("embedding_length"), self.get("attention.head_count")
        share = hidden // heads if _size(hidden) and _size(heads) else None
        return self.get("attention.key_length", share)


def shortest(number: Any) -> Any:
    """The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06; all else as it is."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def _size(value: object) -> bool:
    return type(value) is int and value > 0


def _attention_bias(said: Said) -> bool:
    return said.has("attn_q.bias", "attn_qkv.bias")


def like_llama(said: Said) -> Mapping[str, Any]:
    return {"attention_bias": _attention_bias(said), "mlp_bias": said.has("ffn_up.bias")}


def nothing(said: Said) -> Mapping[str, Any]:
    """For architectures whose class in transformers fixes the rest."""
    return {}


def mixtral(said: Said) -> Mapping[str, Any]:
    return {
        "num_local_experts": said.get("expert_count"),
        "num_experts_per_tok": said.needed("expert_used_count"),
    }


def qwen3moe(said: Said) -> Mapping[str, Any]:
    return {
        "attention_bias": _attention_bias(said),
        "num_experts": said.needed("expert_count"),
        "num_experts_per_tok": said.needed("expert_used_count"),
        "intermediate_size": said.get("feed_forward_length"),
        "moe_intermediate_size": said.needed("expert_feed_forward_length"),
        # No key says so: llama.cpp takes it for granted.
        "norm_topk_prob": True,
    }


def gemma2(said: Said) -> Mapping[str, Any]:
    return {
        **_gemma(said, _LAYERS_OF_GEMMA2_27B),
        "sliding_window": said.get("attention.sliding_window", 4096),
    }


def gemma3(said: Said) -> Mapping[str, Any]:
    return {
        **_gemma(said, _LAYERS_OF_GEMMA3_27B),
        "rope_local_base_freq": said.get("rope.freq_base_swa", 10_000.0),
    }


def _gemma(said: Said, layers_of_27b: int) -> dict[str, Any]:
    hidden, heads = said.get("embedding_length"), said.get("attention.head_count")
    scalar = said.head_dim
    if said.get("block_count") == layers_of_27b and _size(hidden) and _size(heads):
        scalar = hidden // heads
    return {
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": said.get("attn_logit_softcapping"),
        "final_logit_softcapping": said.get("final_logit_softcapping"),
        "layer_types": _layer_types(said),
    }


def _layer_types(said: Said) -> list[str] | None:
    """Which layers have a window: every nth has none, or a flag for each; None as usual."""
    pattern, count = said.get("attention.sliding_window_pattern"), said.get("block_count")
    if pattern is None or not _size(count) or count > _MAX_LAYERS:
        return None
    if type(pattern) is int and pattern >= 0:
        pattern = [pattern == 0 or (i + 1) % pattern != 0 for i in range(count)]
    if not isinstance(pattern, list) or len(pattern) != count:
        raise BadModelFile(
            f"{said.file.path}: {said.arch}.attention.sliding_window_pattern must be a number "
            f"or a flag for each of {count} layers"
        )
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def stablelm(said: Said) -> Mapping[str, Any]:
    # llama.cpp decides by the norm too: older files lack the key.
    return {
        "use_qkv_bias": _attention_bias(said),
        "use_parallel_residual": not said.has("ffn_norm.weight"),
    }


def glm(said: Said) -> Mapping[str, Any]:
    return {"attention_bias": _attention_bias(said)}


def gptneox(said: Said) -> Mapping[str, Any]:
    return {
        "attention_bias": _attention_bias(said),
        "use_parallel_residual": said.get("use_parallel_residual", True),
    }


def starcoder2(said: Said) -> Mapping[str, Any]:
    return {"use_bias": _attention_bias(said)}


def falcon(said: Said) -> Mapping[str, Any]:
    heads, kv_heads = said.get("attention.head_count"), said.get("attention.head_count_kv")
    two_norms = said.has("attn_norm_2.weight")
    return {
        "new_decoder_architecture": two_norms or kv_heads not in (1, heads, None),
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads,
        "parallel_attn": True,
        "bias": _attention_bias(said),
    }
