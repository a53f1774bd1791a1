"""Model directories with ggml blocks: of a GGUF file, and with blocks in their own weight files."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.safetensors import create_safetensors
from swiftchat.weights.gguf.model_files import write_model_files
from tests.support.gguf.blocks import random_blocks

# Two ranks have half a block of 256 columns of `o`, and of `down` a block and a half each.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 200,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def of_file(gguf: Path, folder: Path, dtype: str | None = None) -> Path:
    """Make the model directory of a GGUF file; `dtype` is that of the activations."""
    folder.mkdir()
    write_model_files(gguf, folder)
    if dtype is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype}))
    return folder


def write(
    folder: Path, type_name: str, mixed: Mapping[str, str] = MappingProxyType({})
) -> ModelConfig:
    """Write a tiny Llama with random matrices of `type_name` to a safetensors file.

    Matrices whose name contains a key of `mixed` have its type.
    """
    folder.mkdir()
    quantization = {"quantization_config": {"quant_method": "gguf"}}
    (folder / "config.json").write_text(json.dumps(_CONFIG | quantization))
    config = read_model_config(_CONFIG)
    arrays = {}
    for i, (name, shape) in enumerate(expected_tensors(config).items()):
        if len(shape) == 1:
            arrays[name] = np.ones(shape, np.float32)
            continue
        kind = next((kind for key, kind in mixed.items() if key in name), type_name)
        arrays[f"{name}.{kind}"] = random_blocks(kind, *shape, seed=i)
        assert shape[1] % BLOCK_TYPES[kind].block_elements == 0
    dtypes = {"uint8": "U8", "float32": "F32"}
    specs = [(name, dtypes[array.dtype.name], array.shape) for name, array in arrays.items()]
    with create_safetensors(folder / "model.safetensors", specs, {"format": "pt"}) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    return config
