"""GPTQ checkpoints: integers of 2, 3, 4 or 8 bits, packed along the columns of a matrix.

Layout (AutoGPTQ's `QuantLinear`), for a matrix of `rows` outputs and `columns` inputs: `qweight`
int32 [columns·bits/32, rows], `scales` [groups, rows], `qzeros` int32 [groups, rows·bits/32],
`g_idx` int32 [columns], the group of each column. Values are packed low bits first; 3-bit values
straddle words. weight[r, c] = scales[g, r]·(q[c, r] − zero_point[g, r]), g = g_idx[c].
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.quantization.scheme import Int4, PackedSource, Scheme
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import (
    FLOATS,
    CheckedTensors,
    StoredTensor,
    expand_groups,
    pack_nibbles,
    unpack_bits,
)

_BITS = (2, 3, 4, 8)
_MAX_GROUP = 2**20
# How the model was quantized or should be run: no effect on the weights.
_IGNORED = {
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


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every `….qweight` with its parts as `….weight`.

    The first format stores zero points minus one, modulo 2^bits; `gptq_v2` stores them as they
    are. (Some kernels read all ones as 2^bits, which no tool writes: zero points are below it.)
    """
    settings.reject_unknown(_IGNORED | _READ)
    bits = settings.integer("bits", _BITS, "2, 3, 4 or 8")
    group_size = settings.integer("group_size", range(-1, _MAX_GROUP), "-1 or a size")
    if group_size == 0:
        raise settings.error("group_size", "-1 or a size", 0)
    settings.text("pack_dtype", ("int32",), "int32")
    settings.text("method", ("gptq",), "gptq")
    for pattern in settings.nested("dynamic").fields:
        # "-:" excludes layers, which their tensors show; other patterns change their bits.
        if not pattern.startswith("-:"):
            raise settings.error("dynamic", "patterns that begin with -:", pattern)
    zero_offset = 1 if _format(settings) == "gptq" else 0
    reordered = settings.flag("desc_act", False) and not settings.flag("static_groups", False)
    in_order = not reordered or group_size == -1
    return {
        f"{module}.weight": _tensor(source, module, bits, group_size, zero_offset, in_order)
        for module in source.stems(".qweight")
    }


def _format(settings: Settings) -> str:
    known = ("gptq", "gptq_v2")
    named = [
        settings.text(name, known)
        for name in ("checkpoint_format", "format")
        if settings.fields.get(name)
    ]
    if len(set(named)) > 1:
        raise settings.error("format", f"{named[0]}, as checkpoint_format is", named[1])
    return named[0] if named else "gptq"


def _tensor(
    source: CheckedTensors,
    module: str,
    bits: int,
    group_size: int,
    zero_offset: int,
    in_order: bool,
) -> StoredTensor:
    words, rows = source.shape(f"{module}.qweight", ("I32",), 2)
    columns = words * 32 // bits
    if words * 32 % bits or rows * bits % 32:
        raise source.error(f"{module}.qweight", f"whole words of {bits} bits", f"{[words, rows]}")
    group_size = columns if group_size == -1 else group_size
    groups = -(-columns // group_size)
    parts = {
        "qweight": f"{module}.qweight",
        "scales": source.require(f"{module}.scales", FLOATS, (groups, rows)),
        "qzeros": source.require(f"{module}.qzeros", ("I32",), (groups, rows * bits // 32)),
    }
    if f"{module}.g_idx" in source.tensors:
        parts["g_idx"] = source.require(f"{module}.g_idx", ("I32",), (columns,))
    elif not in_order:
        raise BadModelFile(
            f"no tensor {module}.g_idx: desc_act is set, so the order of the columns is needed"
        )

    default_index = np.arange(columns) // group_size

    def by_column(table: npt.NDArray[Any]) -> Floats:
        by_row = np.ascontiguousarray(table.T).astype(np.float32)
        index = source.read_group_index(parts["g_idx"], groups) if "g_idx" in parts else None
        if index is None or np.array_equal(index, default_index):
            return expand_groups(by_row, group_size, columns)
        return by_row[:, index]

    def zero_points(start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Zero points [groups, stop − start]."""
        stored = unpack_bits(source.read_words(parts["qzeros"]), bits)[:, start:stop]
        return (stored + np.uint8(zero_offset)) & np.uint8((1 << bits) - 1)

    def dequantize(start: int, stop: int) -> Floats:
        values = unpack_bits(source.read_words(parts["qweight"])[:, start:stop].T, bits)
        result = values.astype(np.float32)
        result -= by_column(zero_points(start, stop))
        result *= by_column(source.read_floats(parts["scales"])[:, start:stop])
        return result

    def read_packed() -> Int4:
        values = unpack_bits(np.ascontiguousarray(source.read_words(parts["qweight"]).T), bits)
        scale = np.ascontiguousarray(source.read_scales(parts["scales"]).T)
        return Int4(pack_nibbles(values), scale, zero_points(0, rows).T.astype(np.float32))

    is_default = "g_idx" not in parts or np.array_equal(source.read(parts["g_idx"]), default_index)
    can_stay_packed = bits == 4 and columns % group_size == 0 and is_default
    packed = PackedSource(Scheme(Int4, group_size), read_packed) if can_stay_packed else None
    return StoredTensor("gptq", (rows, columns), parts, dequantize, packed)
