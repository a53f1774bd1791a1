"""bitsandbytes: 4-bit codes with a factor for each run of numbers, or int8 with one a row.

Layout (bitsandbytes' `QuantState.as_dict` and `Linear8bitLt`). 4 bits: `weight` U8 [n/2, 1], two
codes a byte, high half first, numbers in the order of the matrix; `weight.quant_map` F32 [16],
the number of each code; `weight.absmax`, a factor for each `blocksize` numbers, F32, or where
nested U8 codes of `weight.nested_quant_map` F32 [256], times `weight.nested_absmax` for each
`nested_blocksize` of them, plus `nested_offset`; `blocksize` and such are JSON, in the bytes
of `weight.quant_state.bitsandbytes__nf4` (or `__fp4`). weight = quant_map[code]·absmax.
8 bits: `weight` I8 [rows, columns] and `SCB` F32 [rows], the largest of each row:
weight = q·SCB/127.
"""

import json
import math
from typing import Any

import numpy as np

from swiftchat.weights.quantization.quantized_tensor import Floats, PackedTensor, Source
from swiftchat.weights.quantization.settings import Settings

__all__ = ["tensors"]

_MAX_STATE_BYTES = 65_536
_MAX_BLOCK = 2**20
_STATES = tuple(f".quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
# The state beside each tensor decides; these say how the model was made or is computed with.
_INERT = {
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


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….weight` of 4 or 8 bits with its state."""
    settings.refuse_others(_INERT | {"llm_int8_has_fp16_weight", "bnb_4bit_quant_storage"})
    settings.text("bnb_4bit_quant_storage", ("uint8",), "uint8")
    if settings.flag("llm_int8_has_fp16_weight", False):
        raise settings.bad("llm_int8_has_fp16_weight", "false", True)
    found = {}
    for ending in _STATES:
        for name in source.ending(ending):
            found[name] = _four_bits(source, name, name + ending)
    for module in source.ending(".SCB"):
        found[f"{module}.weight"] = _eight_bits(source, module)
    return found


def _eight_bits(source: Source, module: str) -> PackedTensor:
    name = f"{module}.weight"
    rows, columns = source.shape(name, ("I8",), 2)
    largest = source.require(f"{module}.SCB", ("F32",), (rows,))
    layout = f"{module}.weight_format"
    if layout in source.tensors:
        source.require(layout, ("U8",), source.tensors[layout].shape)
        if source.read(layout).any():
            raise source.bad(layout, "0, rows as they are", "another order of rows")

    def decode(start: int, stop: int) -> Floats:
        numbers = source.read(name)[start:stop].astype(np.float32)
        numbers *= source.floats(largest)[start:stop, None]
        # In this order and with the rounded reciprocal, as bitsandbytes computes it.
        numbers *= np.float32(1 / 127)
        return numbers

    return PackedTensor("int8", (rows, columns), {"weight": name, "largest": largest}, decode)


def _four_bits(source: Source, name: str, state_name: str) -> PackedTensor:
    state = _state(source, state_name)
    shape = _shape(state)
    count = math.prod(shape)
    source.require(name, ("U8",), (-(-count // 2), 1))
    size = state.integer("blocksize", range(2, _MAX_BLOCK), "an even size")
    if size % 2:
        raise state.bad("blocksize", "an even size", size)
    blocks = -(-count // size)
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
        offset = _offset(state)
        parts |= {
            "nested_quant_map": source.require(f"{name}.nested_quant_map", ("F32",), (256,)),
            "nested_absmax": source.require(
                f"{name}.nested_absmax", ("F32",), (-(-blocks // nested_size),)
            ),
        }

    def factors() -> Floats:
        if not nested:
            return source.floats(parts["absmax"])
        codes = source.read(parts["absmax"])
        outer = source.floats(parts["nested_absmax"])[np.arange(blocks) // nested_size]
        return source.floats(parts["nested_quant_map"])[codes] * outer + offset

    def decode(start: int, stop: int) -> Floats:
        width = shape[1]
        begin, end = start * width, stop * width
        packed = source.read(name).reshape(-1)[begin // 2 : -(-end // 2)]
        codes = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=1).reshape(-1)
        codes = codes[begin % 2 : begin % 2 + end - begin]
        result = source.floats(parts["quant_map"])[codes]
        result *= factors()[np.arange(begin, end) // size]
        return result.reshape(stop - start, width)

    return PackedTensor(state.text("quant_type", ("nf4", "fp4")), shape, parts, decode)


def _state(source: Source, name: str) -> Settings:
    (length,) = source.shape(name, ("U8",), 1)
    if length > _MAX_STATE_BYTES:
        raise source.bad(name, f"at most {_MAX_STATE_BYTES} bytes of JSON", str(length))
    try:
        fields: Any = json.loads(source.read(name).tobytes())
    except (ValueError, RecursionError) as error:
        raise source.bad(name, "JSON", "something else") from error
    if not isinstance(fields, dict):
        raise source.bad(name, "a JSON object", type(fields).__name__)
    state = Settings(fields, name)
    state.refuse_others(_STATE_FIELDS)
    return state


def _shape(state: Settings) -> tuple[int, int]:
    value = state.fields.get("shape")
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and 0 < size < 2**31 for size in value)
    ):
        raise state.bad("shape", "two sizes", value)
    return value[0], value[1]


def _offset(state: Settings) -> np.float32:
    value = state.fields.get("nested_offset")
    if not isinstance(value, float) or not math.isfinite(value):
        raise state.bad("nested_offset", "a number", value)
    with np.errstate(over="ignore"):
        return np.float32(value)
