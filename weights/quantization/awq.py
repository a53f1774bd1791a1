"""AWQ checkpoints: 4-bit integers, eight neighboring rows of a matrix per word.

Layout (AutoAWQ's `WQLinear_GEMM`), for a matrix of `rows` outputs and `columns` inputs: `qweight`
int32 [columns, rows/8], `qzeros` int32 [groups, rows/8], `scales` [groups, rows]. The i-th 4-bit
field of a word, low bits first, belongs to row 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
weight[r, c] = scales[g, r]·(q[c, r] − zero_point[g, r]), g = c // group_size.
"""

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.arrays import Floats, Words
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

_MAX_GROUP = 2**20
# The 4-bit field of a word that holds row 0 … 7 of its eight.
_FIELD_OF_ROW = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_IGNORED = {
    "quant_method",
    "backend",
    "modules_to_not_convert",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
    "meta",
    "sym",
    "desc_act",
    "lm_head",
    "pack_dtype",
    "_load_in_4bit",
    "_load_in_8bit",
}
_READ = {
    "bits",
    "w_bit",
    "group_size",
    "q_group_size",
    "zero_point",
    "version",
    "format",
    "checkpoint_format",
}


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every `….qweight` with its parts as `….weight`; only version "gemm" is supported."""
    settings.reject_unknown(_IGNORED | _READ)
    # AutoAWQ's own settings file names them w_bit and q_group_size.
    bits = "w_bit" if "w_bit" in settings.fields else "bits"
    settings.integer(bits, (4,), "4")
    size = "q_group_size" if "q_group_size" in settings.fields else "group_size"
    group_size = settings.integer(size, range(-1, _MAX_GROUP), "-1 or a size", 128)
    if group_size == 0:
        raise settings.error(size, "-1 or a size", 0)
    settings.text("version", ("gemm",), "gemm")
    settings.text("format", ("gemm",), "gemm")
    settings.text("checkpoint_format", ("gemm",), "gemm")
    settings.text("pack_dtype", ("int32",), "int32")
    if settings.flag("desc_act", False):
        raise settings.error("desc_act", "false", True)
    if not settings.flag("zero_point", True):
        raise settings.error("zero_point", "true", False)
    modules = source.stems(".qweight")
    return {f"{module}.weight": _tensor(source, module, group_size) for module in modules}


def _tensor(source: CheckedTensors, module: str, group_size: int) -> StoredTensor:
    columns, words = source.shape(f"{module}.qweight", ("I32",), 2)
    rows = words * 8
    group_size = columns if group_size == -1 else group_size
    if columns % group_size:
        raise source.error(f"{module}.qweight", f"a multiple of {group_size} columns", f"{columns}")
    groups = columns // group_size
    parts = {
        "qweight": f"{module}.qweight",
        "scales": source.require(f"{module}.scales", FLOATS, (groups, rows)),
        "qzeros": source.require(f"{module}.qzeros", ("I32",), (groups, words)),
    }

    def dequantize(start: int, stop: int) -> Floats:
        begin, end = start // 8, -(-stop // 8)
        result = _unpack(source.read_words(parts["qweight"])[:, begin:end]).astype(np.float32)
        zero_points = _unpack(source.read_words(parts["qzeros"])[:, begin:end]).astype(np.float32)
        result -= expand_groups(zero_points, group_size, columns)
        scales = source.read_floats(parts["scales"])[:, 8 * begin : 8 * end].T
        result *= expand_groups(scales, group_size, columns)
        return result[start - 8 * begin : stop - 8 * begin]

    def read_packed() -> Int4:
        values = _unpack(source.read_words(parts["qweight"]))
        zero_point = _unpack(source.read_words(parts["qzeros"])).astype(np.float32)
        scale = np.ascontiguousarray(source.read_scales(parts["scales"]).T)
        return Int4(pack_nibbles(values), scale, zero_point)

    packed = PackedSource(Scheme(Int4, group_size), read_packed) if columns % 2 == 0 else None
    return StoredTensor("awq", (rows, columns), parts, dequantize, packed)


def _unpack(words: Words) -> npt.NDArray[np.uint8]:
    """Unpack words [columns, n] to 4-bit values [8·n, columns]."""
    packed = unpack_bits(words, 4).reshape(len(words), -1, 8)
    return np.ascontiguousarray(packed[:, :, _FIELD_OF_ROW].reshape(len(words), -1).T)
