"""A model directory whose weights are zeros."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.safetensors import create_safetensors
from tests.support import fake_engine


def make_zero_model(folder: Path, **changes: Any) -> Path:
    """Create a model in bf16, its first tensor in fp32; `changes` replace fields of its config."""
    fake_engine.make_folder(folder, **changes)
    config = read_model_config(json.loads((folder / "config.json").read_text()))
    tensors = [(name, "BF16", shape) for name, shape in expected_tensors(config).items()]
    tensors[0] = (tensors[0][0], "F32", tensors[0][2])
    with create_safetensors(folder / "model.safetensors", tensors, {}) as writer:
        for name, dtype, shape in tensors:
            writer.write(name, np.zeros(shape, {"BF16": np.uint16, "F32": np.float32}[dtype]))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    return folder
