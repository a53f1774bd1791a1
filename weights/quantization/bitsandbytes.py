"""bitsandbytes checkpoints: 4-bit codebook values with a scale per block, or int8 per row.

Layout (bitsandbytes' `QuantState.as_dict` and `Linear8bitLt`). 4 bits: `weight` U8 [n/2, 1], two
codebook indices per byte, high half first, elements in row-major order; `weight.quant_map` F32
[16], the codebook; `weight.absmax`, one scale per `blocksize` elements, F32. Nested scales are
U8 indices into `weight.nested_quant_map` F32 [256], times `weight.nested_absmax` per
`nested_blocksize` scales, plus `nested_offset`. The sizes are JSON, in the bytes of
`weight.quant_state.bitsandbytes__nf4` (or `__fp4`). weight = quant_map[index]·absmax.
8 bits: `weight` I8 [rows, columns] and `SCB` F32 [rows], the absolute maximum of each row:
weight = q·SCB/127.
"""

import json
import math
from typing import Any

import numpy as np

from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, StoredTensor

_MAX_STATE_BYTES = 65_536
_MAX_BLOCK = 2**20
_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
# How the model was made or is run; the state of each tensor determines its weights.
_IGNORED = {
    "quant_method",
    "load_in_4bit",
    "load_in_8bit",
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
    "modules_to_not_convert",
}
_STATE_FIELDS = {
    "quant_type",
    "blocksize",
    "dtype",
    "shape",
    "nested_blocksize",
    "nested_dtype",
    "nested_offset",
}


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every `….weight` of 4 or 8 bits with its state."""
    settings.reject_unknown(_IGNORED | {"llm_int8_has_fp16_weight", "bnb_4bit_quant_storage"})
    settings.text("bnb_4bit_quant_storage", ("uint8",), "uint8")
    if settings.flag("llm_int8_has_fp16_weight", False):
        raise settings.error("llm_int8_has_fp16_weight", "false", True)
    found = {}
    for ending in _STATES:
        for name in source.stems(ending):
            found[name] = _four_bits(source, name, name + ending)
    for module in source.stems(".SCB"):
        found[f"{module}.weight"] = _eight_bits(source, module)
    return found


def _eight_bits(source: CheckedTensors, module: str) -> StoredTensor:
    name = f"{module}.weight"
    rows, columns = source.shape(name, ("I8",), 2)
    abs_max = source.require(f"{module}.SCB", ("F32",), (rows,))
    layout = f"{module}.weight_format"
    if layout in source.tensors:
        source.require(layout, ("U8",), source.tensors[layout].shape)
        if source.read(layout).any():
            raise source.error(layout, "0, rows in their own order", "another order of rows")

    def dequantize(start: int, stop: int) -> Floats:
        weights = source.read(name)[start:stop].astype(np.float32)
        weights *= source.read_floats(abs_max)[start:stop, None]
        # In this order and with the rounded reciprocal, as bitsandbytes computes it.
        weights *= np.float32(1 / 127)
        return weights

    return StoredTensor("int8", (rows, columns), {"weight": name, "abs_max": abs_max}, dequantize)


def _four_bits(source: CheckedTensors, name: str, state_name: str) -> StoredTensor:
    state = _state(source, state_name)
    shape = state.two_sizes("shape", 2**31 - 1)
    count = math.prod(shape)
    source.require(name, ("U8",), (-(-count // 2), 1))
    block_size = state.integer("blocksize", range(2, _MAX_BLOCK), "an even size")
    if block_size % 2:
        raise state.error("blocksize", "an even size", block_size)
    blocks = -(-count // block_size)
    nested = f"{name}.nested_absmax" in source.tensors
    parts = {
        "weight": name,
        "state": state_name,
        "quant_map": source.require(f"{name}.quant_map", ("F32",), (16,)),
        "absmax": source.require(f"{name}.absmax", ("U8" if nested else "F32",), (blocks,)),
    }
    nested_size = 1
    offset = np.float32(0)
    if nested:
        nested_size = state.integer("nested_blocksize", range(1, _MAX_BLOCK), "a size")
        offset = _nested_offset(state)
        parts |= {
            "nested_quant_map": source.require(f"{name}.nested_quant_map", ("F32",), (256,)),
            "nested_absmax": source.require(
                f"{name}.nested_absmax", ("F32",), (-(-blocks // nested_size),)
            ),
        }

    def scales() -> Floats:
        if not nested:
            return source.read_floats(parts["absmax"])
        indices = source.read(parts["absmax"])
        outer = source.read_floats(parts["nested_absmax"])[np.arange(blocks) // nested_size]
        return source.read_floats(parts["nested_quant_map"])[indices] * outer + offset

    def dequantize(start: int, stop: int) -> Floats:
        width = shape[1]
        begin, end = start * width, stop * width
        packed = source.read(name).reshape(-1)[begin // 2 : -(-end // 2)]
        indices = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=1).reshape(-1)
        indices = indices[begin % 2 : begin % 2 + end - begin]
        result = source.read_floats(parts["quant_map"])[indices]
        result *= scales()[np.arange(begin, end) // block_size]
        return result.reshape(stop - start, width)

    return StoredTensor(state.text("quant_type", ("nf4", "fp4")), shape, parts, dequantize)


def _state(source: CheckedTensors, name: str) -> Settings:
    (length,) = source.shape(name, ("U8",), 1)
    if length > _MAX_STATE_BYTES:
        raise source.error(name, f"at most {_MAX_STATE_BYTES} bytes of JSON", str(length))
    try:
        fields: Any = json.loads(source.read(name).tobytes())
    except (ValueError, RecursionError) as error:
        raise source.error(name, "JSON", "something else") from error
    if not isinstance(fields, dict):
        raise source.error(name, "a JSON object", type(fields).__name__)
    state = Settings(fields, name)
    state.reject_unknown(_STATE_FIELDS)
    return state


def _nested_offset(state: Settings) -> np.float32:
    value = state.fields.get("nested_offset")
    if not isinstance(value, float) or not math.isfinite(value):
        raise state.error("nested_offset", "a number", value)
    with np.errstate(over="ignore"):
        return np.float32(value)
