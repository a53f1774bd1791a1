"""LoRA and DoRA adapters in the layout of mlx-lm: adapter_config.json and adapters.safetensors.

Source: the tuner of mlx-lm (`mlx_lm.tuner`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.adapters.adapter import Adapter, LowRank
from swiftchat.weights.adapters.files import CONFIG_FILE, OTHER_BASE, AdapterFiles
from swiftchat.weights.adapters.modules import model_tensors, unknown_module
from swiftchat.weights.adapters.peft import is_number
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.formats.arrays import Floats

_PARTS = ("lora_a", "lora_b", "m")


def is_mlx(settings: Mapping[str, Any]) -> bool:
    """Return whether a configuration is one of mlx-lm."""
    return "peft_type" not in settings and ("lora_parameters" in settings or "rank" in settings)


def mlx_adapter(directory: Path, settings: Mapping[str, Any], config: ModelConfig) -> Adapter:
    """Return the adapter for the model of `config`.

    Raises `BadModelFile` for a kind of fine-tuning that is not supported, and for a tensor that is
    damaged or does not fit the model.
    """
    place = f"{directory / CONFIG_FILE}"
    kind = settings.get("fine_tune_type", "lora")
    if kind not in ("lora", "dora"):
        raise BadModelFile(
            f"{place}: fine_tune_type {str(kind)[:40]!r} is not supported",
            "LoRA and DoRA adapters are supported; fuse others into the model",
        )
    files, known = AdapterFiles(directory), model_tensors(config)
    modules: dict[str, set[str]] = {}
    for name in files.tensors:
        module, _, part = name.rpartition(".")
        if part not in _PARTS:
            raise BadModelFile(f"{files.file}: tensor {name[:200]} is of an unknown kind")
        modules.setdefault(module, set()).add(part)
    if not modules:
        raise BadModelFile(f"{files.file} has no tensors of an adapter")
    scale = _scale(settings, place)
    changes = []
    for module, parts in modules.items():
        if f"{module}.weight" not in known:
            message = unknown_module(str(files.file), module, known, config)
            raise BadModelFile(message, OTHER_BASE)
        if ("m" in parts) != (kind == "dora"):
            raise BadModelFile(f"{files.file}: tensor {module}.m contradicts fine_tune_type {kind}")
        changes.append(_change(files, module, config, scale, has_magnitude="m" in parts))
    base = settings.get("model")
    return Adapter(
        path=directory,
        kind="DoRA" if kind == "dora" else "LoRA",
        low_rank=tuple(changes),
        base=base if isinstance(base, str) and base else None,
        files=(directory / CONFIG_FILE, files.file),
    )


def _scale(settings: Mapping[str, Any], place: str) -> float:
    """Return the scale; older versions have `alpha`, which they divide by the rank."""
    found = settings.get("lora_parameters", settings)
    parameters = found if isinstance(found, dict) else {}
    scale, alpha, rank = (parameters.get(key) for key in ("scale", "alpha", "rank"))
    if is_number(scale):
        return scale
    if is_number(alpha) and is_number(rank) and rank:
        return alpha / rank
    raise BadModelFile(f"{place}: lora_parameters: expected a scale")


def _change(
    files: AdapterFiles, module: str, config: ModelConfig, scale: float, *, has_magnitude: bool
) -> LowRank:
    tensor = f"{module}.weight"
    key, shape = model_tensors(config)[tensor]
    a, b, m = (f"{module}.{part}" for part in _PARTS)
    if len(shape) != 2 or key[0] == "positions":
        raise BadModelFile(f"{files.file}: {a}: {tensor} is no such matrix")
    if key[0] in ARCHITECTURES[config.architecture].transposed:
        shape = shape[::-1]
    num_out, num_in = shape[::-1] if key[0] == "embed" else shape
    if len(files.shape(a)) != 2:
        raise files.bad(a, "two axes", str(list(files.shape(a))))
    rank = files.shape(a)[1]
    files.require(a, (num_in, rank))
    files.require(b, (rank, num_out))
    if has_magnitude:
        files.require(m, (num_out,))
    return LowRank(
        key=key,
        tensor=tensor,
        rank=rank,
        scale=scale,
        a=files.reader(a, _transposed),
        b=files.reader(b, _transposed),
        magnitude=files.reader(m) if has_magnitude else None,
    )


def _transposed(values: Floats) -> Floats:
    return np.ascontiguousarray(values.T)
