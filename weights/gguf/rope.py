"""The rope scaling of a GGUF file as fields of `config.json`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.metadata import Metadata, is_size, shortest_decimal

_LLAMA3_DIVISORS = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_UNROTATED = 1e20  # divisors of pairs without rotation are larger
ROPE_TENSORS = frozenset({_LLAMA3_DIVISORS, _SHORT, _LONG})

# low_freq_factor, high_freq_factor and context of the published Llama 3 models; tried first,
# because they fit those exactly.
_LLAMA3_ROPE = (1.0, 4.0, 8192)


def rope_fields(
    metadata: Metadata, config_json: Mapping[str, Any], config: ModelConfig
) -> dict[str, Any]:
    """Return the fields to add to `config_json`, which `config` was read from.

    Without scaling there are none. Raises `BadModelFile` for an unknown or invalid scaling.
    """
    file = metadata.file
    if "rope_parameters" in config_json:  # by kind of layer, complete
        return {}
    if _LLAMA3_DIVISORS in file.tensors:
        scaling = _llama3(metadata, config)
        return {"rope_scaling": scaling} if scaling else {}
    if _LONG in file.tensors or _SHORT in file.tensors:
        return _longrope(metadata, config_json, config)
    scaling = _scaling(metadata)
    return {"rope_scaling": scaling} if scaling else {}


def rope_by_kind(metadata: Metadata) -> dict[str, Any]:
    """Return `rope_parameters` of both kinds of layers; those with a window are never scaled.

    Raises `BadModelFile` for an unknown scaling.
    """
    base = metadata.get("rope.freq_base", 10_000.0)
    full = {"rope_theta": base, "partial_rotary_factor": metadata.rotated_share()}
    windowed = {
        "rope_theta": metadata.get("rope.freq_base_swa", base),
        "partial_rotary_factor": metadata.rotated_share("rope.dimension_count_swa"),
    }
    plain = {"rope_type": "default"}
    return {
        "full_attention": {**full, **(_scaling(metadata) or plain)},
        "sliding_attention": {**windowed, **plain},
    }


def _scaling(metadata: Metadata) -> dict[str, Any] | None:
    """Return the linear or YaRN scaling; None if there is none."""
    # The default is llama.cpp's: older files only have a factor, under an older key.
    kind = metadata.get("rope.scaling.type", "linear")
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear"))
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(metadata, factor)
    raise BadModelFile(
        f"{metadata.file.path}: rope scaling {str(kind)[:40]!r} is not supported yet"
    )


def _yarn(metadata: Metadata, factor: Any) -> dict[str, Any]:
    fields = {
        "factor": factor,
        "original_max_position_embeddings": metadata.get("rope.scaling.original_context_length"),
        "attention_factor": metadata.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": metadata.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": metadata.get("rope.scaling.yarn_beta_slow"),
    }
    multiplier = metadata.get("rope.scaling.yarn_log_multiplier")
    if metadata.name in _LATENT and multiplier is not None:
        # It also scales the attention scores; the keys of transformers are ten times as large.
        fields |= dict.fromkeys(("mscale", "mscale_all_dim"), round(multiplier * 10, 6))
    if metadata.name == "mistral3":
        # Here it has the value of transformers. The other key lets queries grow with the position.
        fields |= dict.fromkeys(("mscale", "mscale_all_dim"), multiplier)
        fields["llama_4_scaling_beta"] = metadata.get("attention.temperature_scale") or None
    if metadata.name == "mistral4":
        # The converter does not write it; this is the value of the published models.
        fields["llama_4_scaling_beta"] = metadata.get("attention.temperature_scale", 0.1)
        rotated, width = (metadata.get(key) for key in _MISTRAL4_SIZES)
        if is_size(rotated) and is_size(width):
            fields["partial_rotary_factor"] = rotated / width
    present = {name: value for name, value in fields.items() if value is not None}
    # There is no key for it. GPT-OSS was trained without rounding the range of frequencies.
    truncate = {"truncate": False} if metadata.name == "gpt-oss" else {}
    return {"rope_type": "yarn", **present, **truncate}


_LATENT = ("deepseek2", "deepseek32", "mistral4", "glm-dsa")
# The rotated and all elements of a head.
_MISTRAL4_SIZES = ("rope.dimension_count", "attention.key_length_mla")


def _longrope(
    metadata: Metadata, config_json: Mapping[str, Any], config: ModelConfig
) -> dict[str, Any]:
    factors = {
        "short_factor": _vector(metadata.file, _SHORT),
        "long_factor": _vector(metadata.file, _LONG),
    }
    # Transformers 4 accepts only these three keys, and `type` only under this name.
    scaling: dict[str, Any] = {"type": "longrope"}
    scaling |= {
        name: [shortest_decimal(float(f)) for f in found] for name, found in factors.items()
    }
    fields = {"rope_scaling": scaling}
    original = metadata.get("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original
    magnitude = metadata.get("rope.scaling.attn_factor")
    usual = RopeConfig.from_hf({**config_json, **fields}, config.attention.rope_width).magnitude
    if isinstance(magnitude, float) and not math.isclose(magnitude, usual, rel_tol=1e-4):
        scaling["attention_factor"] = magnitude
    return fields


def proportional_share(file: GgufFile, head_dim: object) -> float:
    """Return the fraction of a head's pairs that are rotated: the others have huge divisors."""
    if _LLAMA3_DIVISORS not in file.tensors:
        return 1.0
    found = _vector(file, _LLAMA3_DIVISORS)
    is_rotated = found < _UNROTATED
    count = int(is_rotated.sum())
    plain = np.all(found[:count] == 1) and np.all(is_rotated[:count])
    if not isinstance(head_dim, int) or found.shape != (head_dim // 2,) or not count or not plain:
        raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} matches no known rope scaling")
    return 2 * count / head_dim


def _vector(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 1:
        found = "nothing" if tensor is None else str(list(tensor.shape))
        raise BadModelFile(f"{file.path}: tensor {name}: expected one dimension, found {found}")
    return dequantize(file.rows(tensor), tensor.type_name).reshape(-1)


def _llama3(metadata: Metadata, config: ModelConfig) -> dict[str, Any] | None:
    """Return the parameters of Llama 3's rope scaling that give the stored divisors.

    A divisor f of the wave length w satisfies 1/f = (1 − s)/F + s with s between 0 and 1 and
    s = (C/w − low)/(high − low), so two divisors strictly between 1 and F determine all
    parameters. Without any, both factors are taken to be 1. None if all divisors are 1.
    """
    file, original = metadata.file, metadata.get("rope.scaling.original_context_length")
    found = _vector(file, _LLAMA3_DIVISORS).astype(np.float64)
    if found.shape != (config.attention.head_dim // 2,) or not np.all((found >= 1) & (found < 1e6)):
        raise BadModelFile(
            f"{file.path}: {_LLAMA3_DIVISORS} must hold {config.attention.head_dim // 2} divisors "
            "from 1 to 1e6"
        )
    factor = float(found.max())
    if factor == 1.0:
        return None
    if config.rope is None:
        raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} in a model without rotary embeddings")
    exponents = np.arange(0, config.attention.head_dim, 2) / config.attention.head_dim
    waves = 2 * math.pi * config.rope.theta**exponents
    for low, high, context in (_LLAMA3_ROPE, _fit_llama3(found, waves, factor, original)):
        if np.allclose(_llama3_divisors(waves, factor, low, high, context), found, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": shortest_decimal(factor),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    raise BadModelFile(f"{file.path}: {_LLAMA3_DIVISORS} matches no known rope scaling")


def _llama3_divisors(
    waves: npt.NDArray[np.float64], factor: float, low: float, high: float, context: float
) -> npt.NDArray[np.float64]:
    high_share = np.clip((context / waves - low) / max(high - low, 1e-12), 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1 / ((1 - high_share) / factor + high_share)
    return divisors


def _fit_llama3(
    found: npt.NDArray[np.float64], waves: npt.NDArray[np.float64], factor: float, original: Any
) -> tuple[float, float, int]:
    between = (found > 1) & (found < factor)
    # Only context / (high − low) and low / (high − low) are determined; choose the context.
    context = original if isinstance(original, int) and original > 0 else 8192
    if not between.any():
        return 1.0, 1.0, context  # Llama 4 Scout
    if between.sum() < 2:
        return _LLAMA3_ROPE
    high_share = (1 / found[between] - 1 / factor) / (1 - 1 / factor)
    slope, start = np.polyfit(1 / waves[between], high_share, 1)
    if not slope > 0 or not start < 0:
        return _LLAMA3_ROPE
    width = context / slope
    low = -start * width
    return round(float(low), 4), round(float(low + width), 4), context
