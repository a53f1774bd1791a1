"""Apertus, BitNet and nanochat: models like Llama with another MLP.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_VOCAB,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    optional_integer,
    optional_number,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig

_APERTUS_ROPE = frozen(
    rope_type="llama3",
    rope_theta=12e6,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


_XIELU = MappingProxyType(
    {"model.layers.{i}.mlp.act_fn.beta": 0.5, "model.layers.{i}.mlp.act_fn.eps": -1e-6}
)


def _head_dim(config: Fields) -> int:
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    return head_dim or hidden_size(config) // num_heads(config)


def _apertus(config: Fields) -> Mapping[str, Any]:
    head_dim = _head_dim(config)
    if not config.get("rope_scaling") and config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _APERTUS_ROPE}
    return {
        **({"activation": "xielu"} if config.get("hidden_act") == "xielu" else {}),
        "gated": False,
        "mlp_bias": False,
        "qk_norm": "head",
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def _apertus1p5(config: Fields) -> Mapping[str, Any]:
    """Return the fields of Apertus, whose head may have the first ids only, those of text."""
    size = integer(config, "vocab_size", 1, MAX_VOCAB)
    kept = optional_integer(config, "output_vocab_size", 1, size) or size
    if kept < size and flag(config, "tie_word_embeddings"):
        raise invalid("tie_word_embeddings", "false with output_vocab_size", True)
    return {**_apertus(config), "vocab_size": kept, "extra_embeddings": size - kept}


def _bitnet(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "inner_norms": True}


def _nanochat(config: Fields) -> Mapping[str, Any]:
    head_dim = _head_dim(config)
    return {
        "gated": False,
        "mlp_bias": False,
        "norm_weights": False,
        "embedding_norm": True,
        "qk_norm": "head",
        "qk_norm_weights": False,
        "qk_norm_after_rope": True,
        "rope": replace(RopeConfig.from_hf(config, head_dim), reversed=True),
        "logit_softcap": optional_number(config, "final_logit_softcapping", above=0.0, below=1e6),
    }


_APERTUS_TENSORS = llama_tensors(
    {
        "attn_norm": "attention_layernorm.weight",
        "mlp_norm": "feedforward_layernorm.weight",
        "xielu_positive": "mlp.act_fn.alpha_p",
        "xielu_negative": "mlp.act_fn.alpha_n",
    },
    without=("gate", "gate_bias"),
)
_APERTUS_DEFAULTS = frozen(
    max_position_embeddings=65_536,
    rope_theta=12e6,
    factor=8.0,
    rms_norm_eps=1e-5,
    hidden_act="xielu",
    bos_token_id=1,
    eos_token_id=2,
)

APERTUS_BITNET_NANOCHAT: Mapping[str, Architecture] = {
    "ApertusForCausalLM": Architecture(
        name="apertus",
        model_type="apertus",
        overrides=_apertus,
        constants=_XIELU,
        tensors=_APERTUS_TENSORS,
        defaults=_APERTUS_DEFAULTS,
    ),
    "Apertus1p5TextForCausalLM": Architecture(
        name="apertus1p5",
        model_type="apertus1p5_text",
        overrides=_apertus1p5,
        tensors=_APERTUS_TENSORS,
        constants=_XIELU,
        defaults=frozen(**_APERTUS_DEFAULTS, vocab_size=266_752),
    ),
    "BitNetForCausalLM": Architecture(
        name="bitnet",
        model_type="bitnet",
        overrides=_bitnet,
        tensors=llama_tensors(
            {
                "attn_inner_norm": "self_attn.attn_sub_norm.weight",
                "mlp_inner_norm": "mlp.ffn_sub_norm.weight",
            }
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
            num_key_value_heads=5,
            rope_theta=5e5,
            hidden_act="relu2",
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "NanoChatForCausalLM": Architecture(
        name="nanochat",
        model_type="nanochat",
        overrides=_nanochat,
        supported_keys=frozenset({"final_logit_softcapping"}),
        tensors=llama_tensors(
            {"up": "mlp.fc1.weight", "down": "mlp.fc2.weight"}, without=(*SEPARATE_GATE_UP, "down")
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            hidden_act="relu2",
            final_logit_softcapping=15.0,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
}
