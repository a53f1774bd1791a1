"""The operations of kernels/program.h and the matrices of kernels/matrix.h, for ctypes.

An enumeration or structure here mirrors that of the same name there; `structures_match` compares
versions and sizes. Pointers are addresses: who fills a structure keeps the memory alive.
"""

from collections.abc import Iterator
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

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
    MAMBA2 = 15
    MAMBA = 16


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
    INT5 = 5


def _ints(*names: str) -> Iterator[tuple[str, type[c_int32]]]:
    return ((name, c_int32) for name in names)


def _addresses(*names: str) -> Iterator[tuple[str, type[c_void_p]]]:
    return ((name, c_void_p) for name in names)


class Matrix(Structure):
    _fields_ = (
        *_ints("format", "rows", "cols", "group_cols", "has_minimum", "wide_tables"),
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
        ("is_second_table", c_int32),
        ("table", Matrix),
        ("positions", Matrix),
    )


class NormOp(Structure):
    KIND = OpKind.NORM
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "accumulate", "group_width"),
        ("norm", Norm),
    )


class LinearOp(Structure):
    KIND = OpKind.LINEAR
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "epilogue", "activation", "num_parts", "rows", "exact"),
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
        ("key_bits", c_void_p),
        ("value_bits", c_void_p),
    )


class RotaryOp(Structure):
    KIND = OpKind.ROTARY
    _fields_ = (
        ("header", OpHeader),
        *_ints(
            "qkv",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "norm_width",
            "two_dimensional",
            "num_positions",
            "norm_after",
            "values_are_keys",
        ),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("v_norm", Norm),
        ("cos_sin", c_void_p),
        ("query_factors", c_void_p),
        ("cache", LayerCache),
    )


class AttentionOp(Structure):
    KIND = OpKind.ATTENTION
    _fields_ = (
        ("header", OpHeader),
        *_ints("qkv", "out", "num_heads", "num_kv_heads", "head_dim", "window"),
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
        *_ints("x", "out", "activation", "gated", "interleaved"),
        ("gate_limit", c_float),
        ("gate_scale", c_float),
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
        *_ints(
            "x",
            "out",
            "router_x",
            "num_experts",
            "experts_per_token",
            "normalized",
            "hidden_size",
            "expert_size",
            "shared_size",
            "exact",
            "sigmoid",
            "groups",
            "top_groups",
        ),
        ("eps", c_float),
        ("scale", c_float),
        ("act", ActAndMulOp),
        ("router", Matrix),
        ("shared_router", Matrix),
        ("router_bias", c_void_p),
        ("correction", c_void_p),
        ("expert_scales", c_void_p),
        ("experts", POINTER(Expert)),
    )


class LowRank(Structure):
    _fields_ = (
        *_ints("first", "columns", "rank"),
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
        *_ints("x", "out", "num_sets"),
        ("deltas", POINTER(Delta)),
        ("bias", c_void_p),
    )


class ConvOp(Structure):
    KIND = OpKind.CONV
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "first", "channels", "kernel", "activation", "gated"),
        *_addresses("weight", "bias", "state"),
    )


class DropColumnsOp(Structure):
    KIND = OpKind.DROP_COLUMNS
    _fields_ = (("header", OpHeader), ("x", c_int32), ("out", c_int32), ("first", c_int32))


class GateOp(Structure):
    KIND = OpKind.GATE
    _fields_ = (("header", OpHeader), *_ints("x", "out", "first", "is_plain"))


class GatedDeltaOp(Structure):
    KIND = OpKind.GATED_DELTA
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "num_key_heads", "num_value_heads", "key_dim", "value_dim"),
        ("beta_scale", c_float),
        ("q_norm", Norm),
        ("k_norm", Norm),
        ("norm", Norm),
        *_addresses("decay", "step_bias", "state"),
    )


class Mamba2Op(Structure):
    KIND = OpKind.MAMBA2
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "num_heads", "head_dim", "num_groups", "state_size", "gate_last"),
        *(("min_step", c_float), ("z_scale", c_float), ("step_scale", c_float), ("norm", Norm)),
        *_addresses("decay", "step_bias", "skip", "state"),
    )


class MambaOp(Structure):
    KIND = OpKind.MAMBA
    _fields_ = (
        ("header", OpHeader),
        *_ints("x", "out", "width", "state_size", "step_rank"),
        *((name, Norm) for name in ("step_norm", "b_norm", "c_norm")),
        *_addresses("to_parts", "to_step", "decay", "step_bias", "skip", "state"),
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
    | Mamba2Op
    | MambaOp
)
