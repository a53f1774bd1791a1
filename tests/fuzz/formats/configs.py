"""config.json and generation_config.json of a model directory."""

import json
import random
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import transformers

from swiftchat.chat.options.config import ChatConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.model.directory import Model
from tests.fuzz.mutations import dump_json, mutate_json, mutate_tree
from tests.fuzz.target import Difference, NoReferenceError, Target
from tests.support.adapter_files import CONFIG_JSON

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": None, "head_dim": 8},
    "gpt2": {},
}
# What both sides name the same way.
_COMPARED = (
    ("vocab_size", "vocab_size"),
    ("hidden_size", "hidden_size"),
    ("num_layers", "num_hidden_layers"),
    ("attention.num_heads", "num_attention_heads"),
    ("max_context_tokens", "max_position_embeddings"),
    ("head.tied", "tie_word_embeddings"),
)


@cache
def _seeds() -> tuple[bytes, ...]:
    found = [json.dumps(CONFIG_JSON).encode()]
    for model_type, own in _OWN.items():
        sizes = {} if model_type == "gpt2" else _SIZES
        config = transformers.AutoConfig.for_model(model_type, **sizes, **own).to_dict()
        name = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
        found.append(json.dumps({**config, "architectures": [name]}, default=str).encode())
    return tuple(found)


def _load(data: bytes, folder: Path) -> Any:
    (folder / "config.json").write_bytes(data)
    model = Model.open(folder)
    expected_tensors(model.config)
    _ = model.notes
    return model.config


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    try:
        values = json.loads(data)
        theirs = transformers.AutoConfig.for_model(**values)
        found = {name: getattr(theirs, other) for name, other in _COMPARED}
    except Exception as error:
        raise NoReferenceError from error
    for name, other in _COMPARED:
        ours = attrgetter(name)(loaded)
        if ours != found[name]:
            raise Difference(f"{other}: {ours!r} and {found[name]!r:.80}")


_GENERATION: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_length": 64,
    "transformers_version": "5.0.0",
}


def _generation_seeds() -> list[bytes]:
    return [json.dumps(_GENERATION).encode(), json.dumps({"eos_token_id": 2}).encode()]


def _load_generation(data: bytes, folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(CONFIG_JSON))
    (folder / "generation_config.json").write_bytes(data)
    model = Model.open(folder)
    params = ChatConfig().sampling(model.generation_config, model.config.eos_ids)
    return params.to_wire()


def _mutate_config(chance: random.Random, data: bytes) -> bytes:
    """Change few fields; in half of the cases only numbers and switches, so that more is valid."""
    tree = json.loads(data)
    if chance.random() < 0.5:
        return dump_json(chance, mutate_tree(chance, tree))
    for key in chance.sample(list(tree), chance.choice((1, 1, 2))):
        value = tree[key]
        if isinstance(value, bool):
            tree[key] = not value
        elif isinstance(value, int):
            tree[key] = chance.choice((value * 2, value + 1, value // 2, 0, 1, None, 2**31))
        elif isinstance(value, float):
            tree[key] = chance.choice((value * 2, 0.0, 1, 1e-9, 1e9, float("nan")))
        else:
            del tree[key]
    return dump_json(chance, tree)


CONFIG = Target("config", _seeds, _mutate_config, _load, 1600, _compare)
GENERATION = Target("generation-config", _generation_seeds, mutate_json, _load_generation, 900)
