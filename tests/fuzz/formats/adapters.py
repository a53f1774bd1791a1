"""Adapters: PEFT's configuration and tensors, mlx-lm's, soft prompts, and LoRA in GGUF files."""

import copy
import io
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save

from swiftchat.weights.adapters.open import open_adapter
from swiftchat.weights.adapters.soft_prompt import open_soft_prompt
from tests.fuzz.formats.arrays import compare_tensors
from tests.fuzz.formats.gguf_files import Tree, mutator, write
from tests.fuzz.formats.safetensors import SAFETENSORS
from tests.fuzz.formats.torch_files import ZIP
from tests.fuzz.mutations import mutate_json
from tests.fuzz.target import NoReferenceError, Target
from tests.support.adapter_files import (
    CONFIG,
    HIDDEN,
    LAYERS,
    PREFIX,
    RANK,
    SETTINGS,
    peft_tensors,
    random_changes,
)

_MLX = {"fine_tune_type": "lora", "lora_parameters": {"rank": RANK, "scale": 2.0}}
_MORE = {
    "alpha_pattern": {"q_proj": 3},
    "rank_pattern": {},
    "use_rslora": True,
    "layers_to_transform": [0, 1],
    "exclude_modules": None,
    "modules_to_save": None,
    "fan_in_fan_out": False,
}
_SOFT = {
    "peft_type": "PROMPT_TUNING",
    "num_virtual_tokens": 4,
    "task_type": "CAUSAL_LM",
    "token_dim": HIDDEN,
    "num_transformer_submodules": 1,
}
_SOFT_TENSORS = {"prompt_embeddings": np.ones((4, HIDDEN), np.float32)}


def _read(folder: Path) -> dict[str, np.ndarray]:
    adapter = open_adapter(folder, CONFIG)
    found = {str(key): read() for key, read in adapter.replaced.items()}
    for change in adapter.low_rank:
        found |= {f"{change.tensor} A": change.a(), f"{change.tensor} B": change.b()}
        for read in filter(None, (change.magnitude, change.bias)):
            read()
    _ = adapter.digest
    return found


def _load_config(data: bytes, folder: Path) -> Any:
    (folder / "adapter_config.json").write_bytes(data)
    if b'"lora_parameters"' in data:
        arrays = {}
        for module, (a, b, _) in random_changes().items():
            arrays |= {f"{module}.lora_a": a.T.copy(), f"{module}.lora_b": b.T.copy()}
        (folder / "adapters.safetensors").write_bytes(save(arrays))
    else:
        (folder / "adapter_model.safetensors").write_bytes(save(peft_tensors()))
    return _read(folder)


def _load_tensors(data: bytes, folder: Path, *, name: str) -> Any:
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS))
    (folder / name).write_bytes(data)
    return _read(folder)


def _compare_tensors(data: bytes, folder: Path, loaded: Any, *, is_torch: bool) -> None:
    """A and B of each matrix are the tensors that the format's own library reads."""
    try:
        if is_torch:
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            theirs = {name: tensor.float().numpy() for name, tensor in content.items()}
        else:
            theirs = {name: array.astype(np.float32) for name, array in load(data).items()}
    except Exception as error:
        raise NoReferenceError from error
    expected = {}
    for name, array in theirs.items():
        module, _, part = name.removeprefix(PREFIX).rpartition(".lora_")
        expected[f"{module}.weight {part[0]}"] = array
    compare_tensors(loaded, expected)


def _load_gguf(data: bytes, folder: Path) -> Any:
    path = folder / "adapter.gguf"
    path.write_bytes(data)
    return _read(path)


def _load_soft(data: bytes, folder: Path) -> Any:
    (folder / "adapter_config.json").write_bytes(data)
    (folder / "adapter_model.safetensors").write_bytes(save(_SOFT_TENSORS))
    return open_soft_prompt(folder, CONFIG).read()


@cache
def _gguf_tree() -> Tree:
    pairs = [
        ["general.architecture", 8, "llama"],
        ["general.type", 8, "adapter"],
        ["adapter.type", 8, "lora"],
        ["adapter.lora.alpha", 6, 6.0],
    ]
    tensors = []
    for layer in range(LAYERS):
        for name, (a, b, _) in list(random_changes().items())[:2]:
            kind = "attn_q" if "q_proj" in name else "ffn_down"
            for part, array in (("a", a), ("b", b)):
                dims = list(array.shape[::-1])
                place = f"blk.{layer}.{kind}.weight.lora_{part}"
                tensors.append([place, dims, 0, None, array.tobytes()])
    return {"version": 3, "pairs": pairs, "tensors": tensors}


def _saved() -> list[bytes]:
    stream = io.BytesIO()
    torch.save({name: torch.from_numpy(one) for name, one in peft_tensors().items()}, stream)
    return [stream.getvalue()]


def _texts(*settings: dict[str, Any]) -> list[bytes]:
    return [json.dumps(one).encode() for one in settings]


def _settings() -> list[bytes]:
    return _texts(SETTINGS, {**SETTINGS, **copy.deepcopy(_MORE)}, _MLX)


ADAPTERS = (
    Target("adapter-config", _settings, mutate_json, _load_config, 1000),
    Target(
        "adapter-safetensors",
        lambda: [save(peft_tensors())],
        SAFETENSORS.mutate,
        partial(_load_tensors, name="adapter_model.safetensors"),
        700,
        partial(_compare_tensors, is_torch=False),
    ),
    Target(
        "adapter-bin",
        _saved,
        ZIP.mutate,
        partial(_load_tensors, name="adapter_model.bin"),
        400,
        partial(_compare_tensors, is_torch=True),
    ),
    Target("adapter-gguf", lambda: [write(_gguf_tree())], mutator(_gguf_tree), _load_gguf, 700),
    Target("soft-prompt", lambda: _texts(_SOFT), mutate_json, _load_soft, 600),
)
