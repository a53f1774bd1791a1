"""Quantized checkpoints: the settings and the tensors of NVFP4, by both programs that write it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from swiftchat.weights.files.reading import read_json
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.methods import model_tensors
from tests.fuzz.formats.safetensors import SAFETENSORS
from tests.fuzz.mutations import mutate_json
from tests.fuzz.target import Difference, Target
from tests.support.quantized_models import FORMATS, MODELOPT
from tests.support.quantized_packers import under

_COMPRESSED, _MODELOPT = "compressed-nvfp4", "modelopt-nvfp4"
_OLDER = {
    "quant_method": "modelopt",
    "producer": {"name": "modelopt", "version": "0.23.0"},
    "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]},
}
_MIXED = {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": 1}}}


def _tensors(name: str) -> bytes:
    generator = torch.Generator().manual_seed(0)
    _, pack = FORMATS[name]
    packed = pack(torch.randn(3, 48, generator=generator))[0]
    tensors = {"norm.weight": torch.ones(4), **under("a", packed)}
    return save({name: tensor.contiguous() for name, tensor in tensors.items()})


def _load_settings(data: bytes, folder: Path) -> Any:
    name = _COMPRESSED if b"compressed-tensors" in data else _MODELOPT
    (folder / "model.safetensors").write_bytes(_tensors(name))
    path = folder / "settings.json"
    path.write_bytes(data)
    return _read(folder, read_json(path))


def _load_tensors(data: bytes, folder: Path, *, name: str) -> Any:
    (folder / "model.safetensors").write_bytes(data)
    return _read(folder, FORMATS[name][0])


def _read(folder: Path, settings: Any) -> list[np.ndarray]:
    """Return the weights of the matrices that stay quantized."""
    checkpoint = Checkpoint.open(folder)
    found = []
    for stored in model_tensors(settings, checkpoint.tensors, checkpoint.read).values():
        weights = stored.to_float32()
        if stored.packed is not None:
            stored.packed.read()
            found.append(weights)
    return found


def _compare(data: bytes, folder: Path, loaded: list[np.ndarray]) -> None:
    if not all(np.isfinite(weights).all() for weights in loaded):
        raise Difference("weights of a matrix that is accepted are not finite")


def _settings() -> list[bytes]:
    own = [FORMATS[name][0] for name in (_COMPRESSED, _MODELOPT)]
    return [json.dumps(settings).encode() for settings in (*own, _OLDER, _MIXED)]


QUANTIZED = (
    Target("nvfp4-settings", _settings, mutate_json, _load_settings, 400, _compare),
    *(
        Target(
            f"{name}-safetensors",
            lambda name=name: [_tensors(name)],
            SAFETENSORS.mutate,
            partial(_load_tensors, name=name),
            300,
            _compare,
        )
        for name in (_COMPRESSED, _MODELOPT)
    ),
)
