"""Random adapters in the files of PEFT, mlx-lm and llama.cpp, for a tiny Llama."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from swiftchat.weights.architectures.config import read_model_config

HIDDEN, INNER, VOCAB, LAYERS = 16, 24, 40, 2
CONFIG_JSON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
CONFIG = read_model_config(CONFIG_JSON)
RANK = 3
# Shapes [out, in] of the changed matrices of each layer.
MATRICES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
SETTINGS: dict[str, Any] = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "down_proj"],
    "base_model_name_or_path": "someone/tiny",
}
PREFIX = "base_model.model."

Tensors = dict[str, np.ndarray]


def random_changes(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return A [rank, in], B [out, rank] and a magnitude [out] by module."""
    generator = np.random.default_rng(seed)
    return {
        f"model.layers.{i}.{name}": (
            generator.standard_normal((RANK, num_in), np.float32),
            generator.standard_normal((num_out, RANK), np.float32),
            generator.random(num_out, np.float32) + 1,
        )
        for i in range(LAYERS)
        for name, (num_out, num_in) in MATRICES.items()
    }


def peft_tensors() -> Tensors:
    tensors = {}
    for module, (a, b, _) in random_changes().items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = a
        tensors[f"{PREFIX}{module}.lora_B.weight"] = b
    return tensors


def write_peft(
    folder: Path, tensors: Tensors | None = None, settings: dict[str, Any] | None = None
) -> Path:
    """Write an adapter directory; `settings` are changes of `SETTINGS`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(peft_tensors() if tensors is None else tensors, folder / "adapter_model.safetensors")
    text = json.dumps({**SETTINGS, **(settings or {})})
    (folder / "adapter_config.json").write_text(text)
    return folder


def write_mlx(folder: Path, kind: str) -> Path:
    folder.mkdir()
    tensors: Tensors = {}
    for module, (a, b, m) in random_changes().items():
        tensors |= {f"{module}.lora_a": a.T.copy(), f"{module}.lora_b": b.T.copy()}
        if kind == "dora":
            tensors[f"{module}.m"] = m
    save_file(tensors, folder / "adapters.safetensors")
    settings = {"fine_tune_type": kind, "lora_parameters": {"rank": RANK, "scale": 2.0}}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write_gguf(path: Path) -> Path:
    """Write a file as convert_lora_to_gguf.py does: rows of q in pairs of a head's halves."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 6.0)
    names = {"self_attn.q_proj": "attn_q", "mlp.down_proj": "ffn_down"}
    for module, (a, b, _) in random_changes().items():
        _, _, layer, name = module.split(".", 3)
        if name == "self_attn.q_proj":
            b = b.reshape(4, 2, -1, RANK).swapaxes(1, 2).reshape(b.shape)
        writer.add_tensor(f"blk.{layer}.{names[name]}.weight.lora_a", a)
        writer.add_tensor(f"blk.{layer}.{names[name]}.weight.lora_b", np.ascontiguousarray(b))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
