"""AWQ: integers of 4 bits, eight neighboring rows of a matrix in a word.

Layout (AutoAWQ's `WQLinear_GEMM`), for a matrix of `rows` outputs and `columns` inputs: `qweight`
int32 [columns, rows/8], `qzeros` int32 [groups, rows/8], `scales` [groups, rows]. The i-th four
bits of a word, low first, belong to row 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
weight[r, c] = scales[g, r]·(q[c, r] − zero[g, r]), g = c // group_size.
"""

import numpy as np
import numpy.typing as npt

from swiftchat.weights.quantization.quantized_tensor import (
    FLOATS,
    Floats,
    PackedTensor,
    Source,
    Words,
    spread,
    unpack,
)
from swiftchat.weights.quantization.scheme import Int4, PackedSource
from swiftchat.weights.quantization.settings import Settings

__all__ = ["tensors"]

_MAX_GROUP = 2**20
# Where the row 0 … 7 of a word's eight lies, counted in fours of bits.
_PLACE = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_INERT = {
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


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….qweight` and its parts as `….weight`; only the version "gemm" is known."""
    settings.refuse_others(_INERT | _READ)
    # AutoAWQ's own file calls them w_bit and q_group_size.
    bits = "w_bit" if "w_bit" in settings.fields else "bits"
    settings.integer(bits, (4,), "4")
    size = "q_group_size" if "q_group_size" in settings.fields else "group_size"
    group_size = settings.integer(size, range(-1, _MAX_GROUP), "-1 or a size", 128)
    if group_size == 0:
        raise settings.bad(size, "-1 or a size", 0)
    settings.text("version", ("gemm",), "gemm")
    settings.text("format", ("gemm",), "gemm")
    settings.text("checkpoint_format", ("gemm",), "gemm")
    settings.text("pack_dtype", ("int32",), "int32")
    if settings.flag("desc_act", False):
        raise settings.bad("desc_act", "false", True)
    if not settings.flag("zero_point", True):
        raise settings.bad("zero_point", "true", False)
    modules = source.ending(".qweight")
    return {f"{module}.weight": _tensor(source, module, group_size) for module in modules}


def _tensor(source: Source, module: str, group_size: int) -> PackedTensor:
    columns, words = source.shape(f"{module}.qweight", ("I32",), 2)
    rows = words * 8
    group_size = columns if group_size == -1 else group_size
    if columns % group_size:
        raise source.bad(f"{module}.qweight", f"a multiple of {group_size} columns", f"{columns}")
    groups = columns // group_size
    parts = {
        "qweight": f"{module}.qweight",
        "scales": source.require(f"{module}.scales", FLOATS, (groups, rows)),
        "qzeros": source.require(f"{module}.qzeros", ("I32",), (groups, words)),
    }

    def decode(start: int, stop: int) -> Floats:
        begin, end = start // 8, -(-stop // 8)
        result = _numbers(source.words(parts["qweight"])[:, begin:end]).astype(np.float32)
        zeros = _numbers(source.words(parts["qzeros"])[:, begin:end]).astype(np.float32)
        result -= spread(zeros, group_size, columns)
        scales = source.floats(parts["scales"])[:, 8 * begin : 8 * end].T
        result *= spread(scales, group_size, columns)
        return result[start - 8 * begin : stop - 8 * begin]

    def kept() -> Int4:
        codes = _numbers(source.words(parts["qweight"]))
        zeros = _numbers(source.words(parts["qzeros"])).astype(np.float32)
        scale = np.ascontiguousarray(source.factors(parts["scales"]).T)
        return Int4(codes[:, 0::2] | codes[:, 1::2] << np.uint8(4), scale, zeros)

    keeping = PackedSource(Int4, kept, group_size) if columns % 2 == 0 else None
    return PackedTensor("awq", (rows, columns), parts, decode, keeping)


def _numbers(words: Words) -> npt.NDArray[np.uint8]:
    """[columns, n] words as the numbers of [8·n, columns]."""
    packed = unpack(words, 4).reshape(len(words), -1, 8)
    return np.ascontiguousarray(packed[:, :, _PLACE].reshape(len(words), -1).T)
