"""The model families this program knows: how each names its tensors and what it assumes."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from swiftchat.errors import BadModelFile

if TYPE_CHECKING:
    from swiftchat.weights.config import ModelConfig

__all__ = ["FAMILIES", "Family", "expected_tensors", "family_of", "family_of_gguf", "tensor_name"]

# Canonical names in the order `convert` writes a layer: what one fused matrix product reads
# together (q k v, gate up) lies together in the file.
LAYER_TENSORS = ("q", "k", "v", "o", "gate", "up", "down", "attn_norm", "mlp_norm")
_ATTENTION_BIASES = ("q_bias", "k_bias", "v_bias")
_MLP_BIASES = ("gate_bias", "up_bias", "down_bias")


@dataclass(frozen=True)
class Family:
    """One architecture as data.

    `tensors` maps a canonical name to the Hugging Face name, `gguf_tensors` to the GGUF name;
    `{i}` stands for the layer. `defaults` are the values transformers takes for absent keys of
    `config.json`. `permuted` names what GGUF stores with the rows of each head reordered for
    interleaved rotary embeddings.
    """

    name: str
    model_type: str
    gguf_arch: str
    tensors: Mapping[str, str]
    gguf_tensors: Mapping[str, str]
    defaults: Mapping[str, Any]
    permuted: frozenset[str] = frozenset()


_LLAMA_LAYER = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
_LLAMA_TENSORS = MappingProxyType(
    {
        "embed": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
        **{name: f"model.layers.{{i}}.{rest}" for name, rest in _LLAMA_LAYER.items()},
    }
)
_GGUF_LAYER = {
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
}
_GGUF_TENSORS = MappingProxyType(
    {
        "embed": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "lm_head": "output.weight",
        **{name: f"blk.{{i}}.{rest}" for name, rest in _GGUF_LAYER.items()},
    }
)
_LLAMA_PERMUTED = frozenset({"q", "k", "q_bias", "k_bias"})

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "LlamaForCausalLM": Family(
            name="llama",
            model_type="llama",
            gguf_arch="llama",
            tensors=_LLAMA_TENSORS,
            gguf_tensors=_GGUF_TENSORS,
            defaults=MappingProxyType(
                {
                    "max_position_embeddings": 2048,
                    "rms_norm_eps": 1e-6,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                }
            ),
            permuted=_LLAMA_PERMUTED,
        ),
        "MistralForCausalLM": Family(
            name="mistral",
            model_type="mistral",
            # GGUF files of Mistral models call themselves llama; they become Llama directories.
            gguf_arch="",
            tensors=_LLAMA_TENSORS,
            gguf_tensors=_GGUF_TENSORS,
            defaults=MappingProxyType(
                {
                    "max_position_embeddings": 4096 * 32,
                    "rms_norm_eps": 1e-6,
                    "num_key_value_heads": 8,
                    "sliding_window": 4096,
                    "bos_token_id": 1,
                    "eos_token_id": 2,
                }
            ),
            permuted=_LLAMA_PERMUTED,
        ),
    }
)


def _unknown(what: str, found: str, known: list[str]) -> BadModelFile:
    nearest = difflib.get_close_matches(found, known, n=1, cutoff=0.0)
    hint = f"nearest known: {nearest[0]}; known: {', '.join(known)}" if nearest else ""
    return BadModelFile(f"unknown {what} {found[:80]!r}", hint)


def family_of(architecture: str) -> Family:
    """The family of a Hugging Face architecture name; an unknown one raises `BadModelFile`."""
    if architecture not in FAMILIES:
        raise _unknown("architecture", architecture, sorted(FAMILIES))
    return FAMILIES[architecture]


def family_of_gguf(arch: str) -> tuple[str, Family]:
    """Architecture name and family of a GGUF `general.architecture`; unknown: `BadModelFile`."""
    known = {family.gguf_arch: name for name, family in FAMILIES.items() if family.gguf_arch}
    if arch not in known:
        raise _unknown("GGUF architecture", arch, sorted(known))
    return known[arch], FAMILIES[known[arch]]


def tensor_name(config: "ModelConfig", canonical: str, layer: int | None = None) -> str:
    """The Hugging Face name of a canonical tensor; `layer` only for the tensors of a layer."""
    return FAMILIES[config.architecture].tensors[canonical].format(i=layer)


def layer_tensors(config: "ModelConfig") -> list[str]:
    """Canonical names of what each layer of `config` has, in the order `convert` writes them."""
    names = list(LAYER_TENSORS)
    if config.attention_bias:
        names += _ATTENTION_BIASES
    if config.output_bias:
        names.append("o_bias")
    if config.mlp_bias:
        names += _MLP_BIASES
    return names


def expected_tensors(config: "ModelConfig") -> dict[str, tuple[int, ...]]:
    """Name and shape (rows, columns) of every tensor a checkpoint of `config` must hold.

    In the order `convert` writes them. With tied embeddings `lm_head` is not among them.
    """
    shapes = canonical_shapes(config)
    wanted = {tensor_name(config, "embed"): shapes["embed"]}
    names = layer_tensors(config)
    for layer in range(config.num_layers):
        for name in names:
            wanted[tensor_name(config, name, layer)] = shapes[name]
    wanted[tensor_name(config, "final_norm")] = shapes["final_norm"]
    if not config.tied_embeddings:
        wanted[tensor_name(config, "lm_head")] = shapes["lm_head"]
    return wanted


def canonical_shapes(config: "ModelConfig") -> dict[str, tuple[int, ...]]:
    """Shape of every canonical tensor, present in `config` or not."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "embed": (config.vocab_size, hidden),
        "final_norm": (hidden,),
        "lm_head": (config.vocab_size, hidden),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "attn_norm": (hidden,),
        "mlp_norm": (hidden,),
        "q_bias": (q_rows,),
        "k_bias": (kv_rows,),
        "v_bias": (kv_rows,),
        "o_bias": (hidden,),
        "gate_bias": (inner,),
        "up_bias": (inner,),
        "down_bias": (hidden,),
    }
