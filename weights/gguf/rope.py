"""The rope scaling of a GGUF file, in the words of `config.json`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.rope import RopeConfig
from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.settings import Said, shortest

__all__ = ["ROPE_TENSORS", "rope_fields"]

_LLAMA3_DIVISORS = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = frozenset({_LLAMA3_DIVISORS, _SHORT, _LONG})

# What published Llama 3 models use; tried first, because it fits them exactly.
_LLAMA3_ROPE = (1.0, 4.0, 8192)


def rope_fields(said: Said, config_json: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The fields to add to `config_json`, which is `config` so far; none where nothing is scaled.

    Raises `BadModelFile` for a scaling this program does not know, or whose numbers cannot be.
    """
    file = said.file
    if _LLAMA3_DIVISORS in file.tensors:
        scaling = _llama3(said, config)
        return {"rope_scaling": scaling} if scaling else {}
    if _LONG in file.tensors or _SHORT in file.tensors:
        return _longrope(said, config_json, config)
    # llama.cpp's default: older files have a factor only, under an older name.
    kind = said.get("rope.scaling.type", "linear")
    factor = said.get("rope.scaling.factor", said.get("rope.scale_linear"))
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return {}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn":
        return {"rope_scaling": _yarn(said, factor)}
    raise BadModelFile(f"{file.path}: rope scaling {str(kind)[:40]!r} is not supported yet")


def _yarn(said: Said, factor: Any) -> dict[str, Any]:
    fields = {
        "factor": factor,
        "original_max_position_embeddings": said.get("rope.scaling.original_context_length"),
        "attention_factor": said.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": said.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": said.get("rope.scaling.yarn_beta_slow"),
    }
    present = {name: value for name, value in fields.items() if value is not None}
    return {"rope_type": "yarn", **present}


def _longrope(said: Said, config_json: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    factors = {
        "short_factor": _vector(said.file, _SHORT),
        "long_factor": _vector(said.file, _LONG),
    }
    # Transformers 4 takes no other keys than these three, nor another name for the first.
    scaling: dict[str, Any] = {"type": "longrope"}
    scaling |= {name: [shortest(float(f)) for f in found] for name, found in factors.items()}
    fields = {"rope_scaling": scaling}
    original = said.get("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original
    magnitude = said.get("rope.scaling.attn_factor")
    usual = RopeConfig.from_hf({**config_json, **fields}, config.head_dim).magnitude
    if isinstance(magnitude, float) and not math.isclose(magnitude, usual, rel_tol=1e-4):
        scaling["attention_factor"] = magnitude
    return fields


def _vector(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 1:
        found = "nothing" if tensor is None else str(list(tensor.shape))
        raise BadModelFile(f"{file.path}: tensor {name}: expected one dimension, found {found}")
    return dequantize(file.rows(tensor), tensor.type_name).reshape(-1)


def _llama3(said: Said, config: ModelConfig) -> dict[str, Any] | None:
    """The parameters of Llama 3's rope scaling out of the divisors it leads to.

    A divisor f of the wave length w satisfies 1/f = (1 − s)/F + s with s between 0 and 1 and
    s = (C/w − low)/(high − low), so two divisors strictly between 1 and F give all of them.
    """
    file, original = said.file, said.get("rope.scaling.original_context_length")
    found = _vector(file, _LLAMA3_DIVISORS).astype(np.float64)
    if found.shape != (config.head_dim // 2,) or not np.all((found >= 1) & (found < 1e6)):
        raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} holds no divisors of frequencies")
    factor = float(found.max())
    if factor == 1.0:
        return None
    if config.rope is None:
        raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} in a model that rotates nothing")
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    waves = 2 * math.pi * config.rope.theta**exponents
    for low, high, context in (_LLAMA3_ROPE, _fitted(found, waves, factor, original)):
        if np.allclose(_llama3_divisors(waves, factor, low, high, context), found, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": shortest(factor),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} follows no known rope scaling")


def _llama3_divisors(
    waves: npt.NDArray[np.float64], factor: float, low: float, high: float, context: float
) -> npt.NDArray[np.float64]:
    share = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1 / ((1 - share) / factor + share)
    return divisors


def _fitted(
    found: npt.NDArray[np.float64], waves: npt.NDArray[np.float64], factor: float, original: Any
) -> tuple[float, float, int]:
    between = (found > 1) & (found < factor)
    if between.sum() < 2:
        return _LLAMA3_ROPE
    share = (1 / found[between] - 1 / factor) / (1 - 1 / factor)
    slope, start = np.polyfit(1 / waves[between], share, 1)
    # Only context / (high − low) and low / (high − low) are determined; the context is free.
    context = original if isinstance(original, int) and original > 0 else 8192
    if not slope > 0 or not start < 0:
        return _LLAMA3_ROPE
    width = context / slope
    low = -start * width
    return round(float(low), 4), round(float(low + width), 4), context
