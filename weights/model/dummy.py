"""Shapes of published models, for random weights: to time and to test without downloads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import ModelNotFound
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.quantization.quantize import QUANTIZABLE, W8A8, WEIGHT_ONLY
from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, QuantizedMatrix, Scheme

_MATRIX_TYPES: Mapping[str, type[QuantizedMatrix]] = MappingProxyType(
    {"int4": Int4, "int8": Int8, "fp8": Float8}
)
_GROUP = 128  # columns of int4 that have a factor together
_SHARED = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def _llama3(
    hidden: int, inner: int, layers: int, heads: int, head_dim: int, rope_factor: float, tied: bool
) -> Mapping[str, Any]:
    """What the models of Llama 3.1 and 3.2 differ in; the rest they have in common."""
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


# By name, the numbers of each model's `config.json` as its makers published them.
DUMMY_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-3.2-1b": _llama3(2048, 8192, 16, 32, 64, rope_factor=32.0, tied=True),
        "llama-3.1-8b": _llama3(4096, 14_336, 32, 32, 128, rope_factor=8.0, tied=False),
        "llama-3.1-70b": _llama3(8192, 28_672, 80, 64, 128, rope_factor=8.0, tied=False),
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
    }
)


def parse_dummy_name(name: str) -> tuple[str, str | None]:
    """Shape and form of `SHAPE:FORM`, as in `llama-3.1-8b:int4`; None without a form known."""
    shape, _, form = name.rpartition(":")
    return (shape, form) if form in (*WEIGHT_ONLY, *W8A8) else (name, None)


def dummy_schemes(config: ModelConfig, form: str | None) -> dict[str, Scheme]:
    """How random matrices of a form are packed, by Hugging Face name; those without stay plain.

    They are those that `convert --quantize` packs, int4 in groups of 128, and with int4 and int8
    the head in int8, whether it is a table of embeddings or not.
    """
    if form is None:
        return {}
    kept, shapes = _MATRIX_TYPES[W8A8.get(form, form)], expected_tensors(config)
    head = "embed" if config.tied_embeddings else "lm_head"
    matrices = QUANTIZABLE - ARCHITECTURES[config.architecture].transposed
    forms: dict[str, Scheme] = {}
    for place in canonical_tensors(config):
        its = tensor_name(config, *place)
        if place[0] in matrices:
            columns = shapes[its][-1]
            group = _GROUP if columns % _GROUP == 0 else columns
            forms[its] = Scheme(kept, group if kept is Int4 else 0)
        elif place[0] == head and form in ("int4", "int8"):
            forms[its] = Scheme(Int8)
    return forms


def dummy_config(name: str) -> ModelConfig:
    """The configuration of a name in `DUMMY_CONFIGS`, or of a `config.json` at that path.

    A form behind it (`parse_dummy_name`) changes nothing of it.
    """
    name, _ = parse_dummy_name(name)
    known = DUMMY_CONFIGS.get(name)
    if known is not None:
        return ModelConfig.from_hf(known)
    if not Path(name).is_file():
        raise ModelNotFound(
            f"no shape called {name!r} and no such config.json",
            f"known shapes: {', '.join(DUMMY_CONFIGS)}",
        )
    return ModelConfig.from_hf(read_json(Path(name)))
