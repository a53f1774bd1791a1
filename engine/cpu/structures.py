"""The structures of kernels/matrix.h and kernels/program.h, for ctypes.

An enumeration or structure here mirrors that of the same name there; `structures_match` compares
versions and sizes. Pointers are addresses: who fills a structure keeps the memory alive.
"""

import ctypes
from ctypes import POINTER, Structure, Union, byref, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

PROGRAM_VERSION = 7
MAX_EXPERT_GROUPS = 64  # as in program.h
TILE_ROWS = 16
BLOCK_COLS = 32


class Format(IntEnum):
    F32 = 0
    F16 = 1
    BF16 = 2
    FP8 = 3
    INT4 = 4
    INT8 = 5


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTARY = 3
    ATTENTION = 4
    ACT_AND_MUL = 5
    ADD_SCALED = 6
    SOFTCAP = 7
    GATHER = 8
    MOE = 9
    LOW_RANK = 10
    CONV = 11
    DROP_COLUMNS = 12
    GATE = 13
    GATED_DELTA = 14


class RowSet(IntEnum):
    TOKENS = 0
    LOGITS = 1


class NormKind(IntEnum):
    NONE = 0
    RMS = 1
    LAYER = 2


class Activation(IntEnum):
    NONE = 0
    SILU = 1
    RELU = 2
    GELU = 3
    GELU_TANH = 4
    GELU_SIGMOID = 5
    RELU2 = 6


class Epilogue(IntEnum):
    STORE = 0
    ADD = 1
    ACT = 2
    ACT_AND_MUL = 3


class KVFormat(IntEnum):
    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    FP8 = 4


class Matrix(Structure):
    _fields_ = (
        ("format", c_int32),
        ("rows", c_int32),
        ("cols", c_int32),
        ("group_cols", c_int32),
        ("has_minimum", c_int32),
        ("wide_tables", c_int32),
        ("stride", c_int64),
        ("data", c_void_p),
        ("row_scale", c_void_p),
    )

    @property
    def is_tiled(self) -> bool:
        return bool(self.format >= Format.INT4)


class OpHeader(Structure):
    _fields_ = (("kind", c_int32), ("row_set", c_int32))


class Norm(Structure):
    _fields_ = (("kind", c_int32), ("eps", c_float), ("weight", c_void_p), ("bias", c_void_p))


class EmbedOp(Structure):
    KIND = OpKind.EMBED
    _fields_ = (
        ("header", OpHeader),
        ("out", c_int32),
        ("scale", c_float),
        ("position_offset", c_int32),
        ("table", Matrix),
        ("positions", Matrix),
    )


class NormOp(Structure):
    KIND = OpKind.NORM
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("accumulate", c_int32),
        ("norm", Norm),
    )


class LinearOp(Structure):
    KIND = OpKind.LINEAR
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("epilogue", c_int32),
        ("activation", c_int32),
        ("num_parts", c_int32),
        ("rows", c_int32),
        ("exact", c_int32),
        ("parts", POINTER(Matrix)),
        ("bias", c_void_p),
        ("norm", Norm),
    )


class LayerCache(Structure):
    _fields_ = (
        ("format", c_int32),
        ("block_size", c_int32),
        ("values", c_void_p),
        ("scales", c_void_p),
    )


class RotaryOp(Structure):
    KIND = OpKind.ROTARY
    _fields_ = (
        ("header", OpHeader),
        ("qkv", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("norm_width", c_int32),
        ("two_dimensional", c_int32),
        ("num_positions", c_int32),
        ("norm_after", c_int32),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("cos_sin", c_void_p),
        ("cache", LayerCache),
    )


class AttentionOp(Structure):
    KIND = OpKind.ATTENTION
    _fields_ = (
        ("header", OpHeader),
        ("qkv", c_int32),
        ("out", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
        ("cache", LayerCache),
    )


class ActAndMulOp(Structure):
    KIND = OpKind.ACT_AND_MUL
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("interleaved", c_int32),
        ("gate_limit", c_float),
    )


class AddScaledOp(Structure):
    KIND = OpKind.ADD_SCALED
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("alpha", c_float),
        ("beta", c_float),
    )


class SoftcapOp(Structure):
    KIND = OpKind.SOFTCAP
    _fields_ = (("header", OpHeader), ("x", c_int32), ("cap", c_float))


class GatherOp(Structure):
    KIND = OpKind.GATHER
    _fields_ = (("header", OpHeader), ("x", c_int32), ("out", c_int32))


class Expert(Structure):
    _fields_ = (
        ("gate_up", Matrix),
        ("down", Matrix),
        ("gate_up_bias", c_void_p),
        ("down_bias", c_void_p),
    )


class MoeOp(Structure):
    KIND = OpKind.MOE
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("num_experts", c_int32),
        ("experts_per_token", c_int32),
        ("normalized", c_int32),
        ("hidden_size", c_int32),
        ("expert_size", c_int32),
        ("shared_size", c_int32),
        ("exact", c_int32),
        ("sigmoid", c_int32),
        ("groups", c_int32),
        ("top_groups", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("act", ActAndMulOp),
        ("router", Matrix),
        ("shared_router", Matrix),
        ("router_bias", c_void_p),
        ("correction", c_void_p),
        ("experts", POINTER(Expert)),
    )


class LowRank(Structure):
    _fields_ = (
        ("first", c_int32),
        ("columns", c_int32),
        ("rank", c_int32),
        ("a", Matrix),
        ("b", Matrix),
    )


class Delta(Structure):
    _fields_ = (
        ("num_parts", c_int32),
        ("rank", c_int32),
        ("parts", POINTER(LowRank)),
        ("gain", c_void_p),
        ("offset", c_void_p),
    )


class LowRankOp(Structure):
    KIND = OpKind.LOW_RANK
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("num_sets", c_int32),
        ("deltas", POINTER(Delta)),
        ("bias", c_void_p),
    )


class ConvOp(Structure):
    KIND = OpKind.CONV
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("first", c_int32),
        ("channels", c_int32),
        ("kernel", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("state", c_void_p),
    )


class DropColumnsOp(Structure):
    KIND = OpKind.DROP_COLUMNS
    _fields_ = (("header", OpHeader), ("x", c_int32), ("out", c_int32), ("first", c_int32))


class GateOp(Structure):
    KIND = OpKind.GATE
    _fields_ = (("header", OpHeader), ("x", c_int32), ("out", c_int32), ("first", c_int32))


class GatedDeltaOp(Structure):
    KIND = OpKind.GATED_DELTA
    _fields_ = (
        ("header", OpHeader),
        ("x", c_int32),
        ("out", c_int32),
        ("num_key_heads", c_int32),
        ("num_value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("norm", Norm),
        ("decay", c_void_p),
        ("step_bias", c_void_p),
        ("state", c_void_p),
    )


AnyOp = (
    EmbedOp
    | NormOp
    | LinearOp
    | RotaryOp
    | AttentionOp
    | ActAndMulOp
    | AddScaledOp
    | SoftcapOp
    | GatherOp
    | MoeOp
    | LowRankOp
    | ConvOp
    | DropColumnsOp
    | GateOp
    | GatedDeltaOp
)


class Op(Union):
    _fields_ = (
        ("header", OpHeader),
        ("embed", EmbedOp),
        ("norm", NormOp),
        ("linear", LinearOp),
        ("rotary", RotaryOp),
        ("attention", AttentionOp),
        ("act_and_mul", ActAndMulOp),
        ("add_scaled", AddScaledOp),
        ("softcap", SoftcapOp),
        ("gather", GatherOp),
        ("moe", MoeOp),
        ("low_rank", LowRankOp),
        ("conv", ConvOp),
        ("drop_columns", DropColumnsOp),
        ("gate", GateOp),
        ("gated_delta", GatedDeltaOp),
    )

    @classmethod
    def of(cls, op: AnyOp) -> "Op":
        """Return a copy of `op` as the union, with the kind in its header."""
        union = cls()
        ctypes.memmove(byref(union), byref(op), ctypes.sizeof(op))
        union.header.kind = op.KIND
        return union


class Buffer(Structure):
    _fields_ = (("row_set", c_int32), ("width", c_int32))


class ProgramStruct(Structure):
    _fields_ = (
        ("num_ops", c_int32),
        ("num_buffers", c_int32),
        ("ops", POINTER(Op)),
        ("buffers", POINTER(Buffer)),
    )


class Span(Structure):
    _fields_ = (
        ("first_row", c_int32),
        ("num_rows", c_int32),
        ("context_len", c_int32),
        ("prefix_len", c_int32),
        ("state_slot", c_int32),
        ("block_table", c_void_p),
    )


class Run(Structure):
    _fields_ = (
        ("num_tokens", c_int32),
        ("num_logits", c_int32),
        ("num_spans", c_int32),
        ("num_threads", c_int32),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("second_positions", c_void_p),
        ("slots", c_void_p),
        ("logits_rows", c_void_p),
        ("sets", c_void_p),
        ("embeddings", c_void_p),
        ("spans", POINTER(Span)),
        ("buffers", POINTER(c_void_p)),
        ("widths", POINTER(Buffer)),
        ("workspace", c_void_p),
    )


# In the order of `struct_bytes` in program.c.
STRUCTURES = (
    *(Op, Matrix, Buffer, ProgramStruct, Span, Run, Norm, LayerCache, Expert, EmbedOp, NormOp),
    *(LinearOp, RotaryOp, AttentionOp, ActAndMulOp, AddScaledOp, SoftcapOp, GatherOp, MoeOp),
    *(LowRank, Delta, LowRankOp, ConvOp, DropColumnsOp, GateOp, GatedDeltaOp),
)


def structures_match(library: ctypes.CDLL) -> bool:
    """Compare the library's version and structures with those of this module."""
    sizes = [library.struct_bytes(i) for i in range(len(STRUCTURES) + 1)]
    expected = [*(ctypes.sizeof(structure) for structure in STRUCTURES), -1]
    return bool(library.program_version() == PROGRAM_VERSION) and sizes == expected
