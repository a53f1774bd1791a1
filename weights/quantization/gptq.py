"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the columns of a matrix.

Layout (AutoGPTQ's `QuantLinear`), for a matrix of `rows` outputs and `columns` inputs: `qweight`
int32 [columns·bits/32, rows], `scales` [groups, rows], `qzeros` int32 [groups, rows·bits/32],
`g_idx` int32 [columns], the group of each column. Numbers lie low bits first, and those of
3 bits run on across words. weight[r, c] = scales[g, r]·(q[c, r] − zero[g, r]), g = g_idx[c].
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.quantized_tensor import (
    FLOATS,
    Floats,
    PackedTensor,
    Source,
    spread,
    unpack,
)
from swiftchat.weights.quantization.scheme import Int4, PackedSource
from swiftchat.weights.quantization.settings import Settings

__all__ = ["tensors"]

_BITS = (2, 3, 4, 8)
_MAX_GROUP = 2**20
# How the model was quantized, or which program should run it: nothing that changes a number.
_INERT = {
    "quant_method",
    "sym",
    "damp_percent",
    "damp_auto_increment",
    "true_sequential",
    "mse",
    "meta",
    "model_name_or_path",
    "model_file_base_name",
    "tokenizer",
    "dataset",
    "batch_size",
    "pad_token_id",
    "use_cuda_fp16",
    "use_exllama",
    "exllama_config",
    "disable_exllama",
    "backend",
    "max_input_length",
    "model_seqlen",
    "block_name_to_quantize",
    "cache_block_outputs",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "act_group_aware",
    "lm_head",
    "quantizer",
    "modules_to_not_convert",
    "_load_in_4bit",
    "_load_in_8bit",
}
_READ = {
    "bits",
    "group_size",
    "desc_act",
    "static_groups",
    "checkpoint_format",
    "format",
    "pack_dtype",
    "method",
    "dynamic",
}


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….qweight` and its parts as `….weight`.

    The first format stores zeros less one, modulo 2^bits; `gptq_v2` stores them as they are.
    (Some kernels read all ones as 2^bits, which no tool writes: zeros are below it.)
    """
    settings.refuse_others(_INERT | _READ)
    bits = settings.integer("bits", _BITS, "2, 3, 4 or 8")
    group_size = settings.integer("group_size", range(-1, _MAX_GROUP), "-1 or a size")
    if group_size == 0:
        raise settings.bad("group_size", "-1 or a size", 0)
    settings.text("pack_dtype", ("int32",), "int32")
    settings.text("method", ("gptq",), "gptq")
    for pattern in settings.nested("dynamic").fields:
        # "-:" leaves layers as they are, which their tensors tell; all else changes their bits.
        if not pattern.startswith("-:"):
            raise settings.bad("dynamic", "patterns that begin with -:", pattern)
    offset = 1 if _format(settings) == "gptq" else 0
    reordered = settings.flag("desc_act", False) and not settings.flag("static_groups", False)
    ordered = not reordered or group_size == -1
    return {
        f"{module}.weight": _tensor(source, module, bits, group_size, offset, ordered)
        for module in source.ending(".qweight")
    }


def _format(settings: Settings) -> str:
    known = ("gptq", "gptq_v2")
    named = [
        settings.text(name, known)
        for name in ("checkpoint_format", "format")
        if settings.fields.get(name)
    ]
    if len(set(named)) > 1:
        raise settings.bad("format", f"{named[0]}, as checkpoint_format is", named[1])
    return named[0] if named else "gptq"


def _tensor(
    source: Source, module: str, bits: int, group_size: int, offset: int, ordered: bool
) -> PackedTensor:
    words, rows = source.shape(f"{module}.qweight", ("I32",), 2)
    columns = words * 32 // bits
    if words * 32 % bits or rows * bits % 32:
        raise source.bad(f"{module}.qweight", f"whole words of {bits} bits", f"{[words, rows]}")
    group_size = columns if group_size == -1 else group_size
    groups = -(-columns // group_size)
    parts = {
        "qweight": f"{module}.qweight",
        "scales": source.require(f"{module}.scales", FLOATS, (groups, rows)),
        "qzeros": source.require(f"{module}.qzeros", ("I32",), (groups, rows * bits // 32)),
    }
    if f"{module}.g_idx" in source.tensors:
        parts["g_idx"] = source.require(f"{module}.g_idx", ("I32",), (columns,))
    elif not ordered:
        raise BadModelFile(
            f"no tensor {module}.g_idx: desc_act is set, and only it tells the order of columns"
        )

    in_order = np.arange(columns) // group_size

    def by_column(table: npt.NDArray[Any]) -> Floats:
        by_row = np.ascontiguousarray(table.T).astype(np.float32)
        index = source.index(parts["g_idx"], groups) if "g_idx" in parts else in_order
        if np.array_equal(index, in_order):
            return spread(by_row, group_size, columns)
        return by_row[:, index]

    def decode(start: int, stop: int) -> Floats:
        numbers = unpack(source.words(parts["qweight"])[:, start:stop].T, bits)
        zeros = unpack(source.words(parts["qzeros"]), bits)[:, start:stop]
        zeros = (zeros + np.uint8(offset)) & np.uint8((1 << bits) - 1)
        result = numbers.astype(np.float32)
        result -= by_column(zeros)
        result *= by_column(source.floats(parts["scales"])[:, start:stop])
        return result

    def kept() -> Int4:
        codes = unpack(np.ascontiguousarray(source.words(parts["qweight"]).T), bits)
        zeros = unpack(source.words(parts["qzeros"]), bits)[:, :rows].T
        zero = ((zeros + np.uint8(offset)) & np.uint8(15)).astype(np.float32)
        scale = np.ascontiguousarray(source.factors(parts["scales"]).T)
        return Int4(codes[:, 0::2] | codes[:, 1::2] << np.uint8(4), scale, zero)

    fits = bits == 4 and columns % group_size == 0 and _in_order(source, parts, in_order)
    keeping = PackedSource(Int4, kept, group_size) if fits else None
    return PackedTensor("gptq", (rows, columns), parts, decode, keeping)


def _in_order(source: Source, parts: Mapping[str, str], in_order: npt.NDArray[Any]) -> bool:
    """Whether each column is in the group that its place says."""
    return "g_idx" not in parts or np.array_equal(source.read(parts["g_idx"]), in_order)
