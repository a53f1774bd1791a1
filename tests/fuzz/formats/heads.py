"""Prediction heads: the configuration and the tensors of EAGLE-3 and Medusa heads."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.heads.eagle3 import Eagle3Files
from swiftchat.weights.heads.open import are_heads, open_heads
from tests.fuzz.formats.safetensors import SAFETENSORS
from tests.fuzz.mutations import mutate_json
from tests.fuzz.target import Difference, Target
from tests.support.adapter_files import CONFIG_JSON
from tests.support.heads import EAGLE3_CONFIG, MEDUSA_CONFIG, eagle3_tensors, medusa_tensors
from tests.support.tiny_models import VOCAB_SIZE

_SIZES = {"hidden_size": 48, "vocab_size": VOCAB_SIZE, "num_hidden_layers": 3}
_MODEL = read_model_config({**CONFIG_JSON, **_SIZES})
_LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}
_MORE: dict[str, Any] = {
    **EAGLE3_CONFIG,
    "rope_theta": None,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    "norm_before_residual": True,
}


def _load_config(data: bytes, folder: Path) -> Any:
    (folder / "config.json").write_bytes(data)
    (folder / "model.safetensors").write_bytes(save(eagle3_tensors()))
    (folder / "medusa_lm_head.safetensors").write_bytes(save(medusa_tensors()))
    return _read(folder) if are_heads(folder) else None


def _load_tensors(data: bytes, folder: Path, *, name: str, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / name).write_bytes(data)
    return _read(folder)


def _read(folder: Path) -> Any:
    files = open_heads(folder, _MODEL)
    for name, info in files.file.tensors.items():
        if info.dtype.startswith(("F", "BF")) and not info.dtype.startswith("F8"):
            files.file.reader(name)()
    return files


def _compare_ids(data: bytes, folder: Path, loaded: Any) -> None:
    """Every token of a head is one of the model's."""
    if isinstance(loaded, Eagle3Files):
        ids = loaded.token_ids
        if len(ids) != loaded.config.draft_vocab_size or np.any((ids < 0) | (ids >= VOCAB_SIZE)):
            raise Difference(f"ids from {ids.min()} to {ids.max()}")


def _configs() -> list[bytes]:
    settings = (EAGLE3_CONFIG, _MORE, {**EAGLE3_CONFIG, **_LAYERS}, MEDUSA_CONFIG)
    return [json.dumps(dict(one)).encode() for one in settings]


HEADS = (
    Target("heads-config", _configs, mutate_json, _load_config, 600, _compare_ids),
    Target(
        "eagle3-safetensors",
        lambda: [save(eagle3_tensors())],
        SAFETENSORS.mutate,
        partial(_load_tensors, name="model.safetensors", config=dict(EAGLE3_CONFIG)),
        500,
        _compare_ids,
    ),
    Target(
        "medusa-safetensors",
        lambda: [save(medusa_tensors())],
        SAFETENSORS.mutate,
        partial(_load_tensors, name="medusa_lm_head.safetensors", config=dict(MEDUSA_CONFIG)),
        300,
    ),
)
