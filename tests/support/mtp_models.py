"""Tiny models that ship a layer for multi-token prediction."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.reference import make_reference

EXTRA = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight")


def make(model_type: str, folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Save a model whose last layer becomes that of multi-token prediction.

    Returns the model with this layer as its last one. Embeddings and LM head are shared.
    """
    made = make_reference(model_type, folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:-1]
    if "mlp_layer_types" in config:
        config["mlp_layer_types"] = config["mlp_layer_types"][:-1]
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors, random = load_file(file), torch.Generator().manual_seed(3)
    prefix, width = f"model.layers.{config['num_hidden_layers']}.", config["hidden_size"]
    for name in EXTRA:
        shape = (width, 2 * width) if "proj" in name else (width,)
        values = torch.randn(shape, generator=random)
        tensors[prefix + name] = values * 0.2 if "proj" in name else 1 + 0.1 * values
    save_file(tensors, file)
    return made
