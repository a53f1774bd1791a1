"""Swiss AI: Apertus."""

from dataclasses import replace
from types import MappingProxyType

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.fields import flag, invalid, optional_integer
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig


def _apertus(keys: Keys) -> ModelConfig:
    if not keys.get("rope_scaling") and keys.get("rope_parameters") is None:
        keys = keys.changed(rope_parameters=_APERTUS_ROPE)
    kind = "xielu" if keys.get("hidden_act") == "xielu" else None
    attention = keys.attention(head_norms=HeadNorms("head"))
    mlp = keys.mlp(activation=keys.activation(kind, gated=False), bias=False)
    return keys.model(keys.layers(attention=attention, mlp=mlp))


def _apertus1p5(keys: Keys) -> ModelConfig:
    """Return Apertus, whose head may have the first ids only, those of text."""
    size = keys.vocab_size
    kept = optional_integer(keys, "output_vocab_size", 1, size) or size
    if kept < size and flag(keys, "tie_word_embeddings"):
        raise invalid("tie_word_embeddings", "false with output_vocab_size", True)
    embeddings = keys.embeddings(vocab_size=kept, extra_rows=size - kept)
    return replace(_apertus(keys), embeddings=embeddings)


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


ARCHITECTURES: Architectures = {
    "ApertusForCausalLM": Architecture(
        model_type="apertus",
        build=_apertus,
        constants=_XIELU,
        tensors=_APERTUS_TENSORS,
        defaults=_APERTUS_DEFAULTS,
    ),
    "Apertus1p5TextForCausalLM": Architecture(
        model_type="apertus1p5_text",
        short_name="apertus1p5",
        build=_apertus1p5,
        tensors=_APERTUS_TENSORS,
        constants=_XIELU,
        defaults=frozen(**_APERTUS_DEFAULTS, vocab_size=266_752),
    ),
}
