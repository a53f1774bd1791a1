"""Swiss AI: Apertus.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_VOCAB,
    Fields,
    flag,
    integer,
    invalid,
    optional_integer,
)
from swiftchat.weights.architectures.parts.layer_readers import head_dim_of
from swiftchat.weights.architectures.parts.rope import (
    RopeConfig,
)


def _apertus(config: Fields) -> Mapping[str, Any]:
    head_dim = head_dim_of(config)
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


SWISS_AI: Mapping[str, Architecture] = {
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
}
