"""Tiny mixtures of experts, each with another kind of experts or of layers around them."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save_file

from tests.support import gemma4, reference, tiny


def make_mxfp4(folder: Path) -> None:
    """Put a GPT-OSS with experts in MXFP4 in `folder`."""
    tiny.make("gpt-oss", folder, hidden_size=64, intermediate_size=96, num_attention_heads=8)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 125, shape, dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))


_FUNCTIONS: dict[str, Callable[[Path], object]] = {
    "qwen3-moe": partial(tiny.make, "qwen3-moe"),
    "qwen2-moe": partial(tiny.make, "qwen2-moe"),  # a shared expert, a layer without experts
    "glm4-moe": partial(reference.copy_reference, "glm4_moe"),  # one without a gate, groups
    "mixtral": partial(tiny.make, "mixtral"),
    "gemma4": partial(gemma4.make, "experts"),  # an MLP beside experts with a norm of their own
    "gpt-oss": partial(tiny.make, "gpt-oss"),  # biases, and one tensor for the experts of a layer
    "gpt-oss-mxfp4": make_mxfp4,
}
EXPERT_MODELS: Mapping[str, Callable[[Path], object]] = MappingProxyType(_FUNCTIONS)
