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


# Where layers have a state, the layer is beside the model; the last one is that of attention.
BESIDE_NORMS = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight")
_KINDS = ["linear_attention", "full_attention"] * 2


def make_beside(model_type: str, folder: Path) -> transformers.PreTrainedModel:
    """As `make`, for Qwen3-Next and Qwen3.5, whose norms are stored minus one."""
    made = make_reference(model_type, folder, layer_types=_KINDS)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    config["layer_types"] = config["layer_types"][:-1]
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    last, random = f"model.layers.{config['num_hidden_layers']}.", torch.Generator().manual_seed(3)
    tensors = {
        name.replace(last, "mtp.layers.0."): tensor for name, tensor in load_file(file).items()
    }
    width = config["hidden_size"]
    for name in (*BESIDE_NORMS, "fc.weight"):
        shape = (width, 2 * width) if name == "fc.weight" else (width,)
        tensors[f"mtp.{name}"] = torch.randn(shape, generator=random) * 0.2
    save_file(tensors, file)
    return made
