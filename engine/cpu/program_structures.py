"""A program and its runs as structures of kernels/program.h, for ctypes.

As in `structures.py`, a structure mirrors that of the same name there.
"""

import ctypes
from ctypes import POINTER, Structure, Union, byref, c_int32, c_void_p

from swiftchat.engine.cpu.structures import (
    ActAndMulOp,
    AddScaledOp,
    AnyOp,
    AttentionOp,
    ConvOp,
    Delta,
    DropColumnsOp,
    EmbedOp,
    Expert,
    GatedDeltaOp,
    GateOp,
    GatherOp,
    LayerCache,
    LinearOp,
    LowRank,
    LowRankOp,
    Mamba2Op,
    MambaOp,
    Matrix,
    MoeOp,
    Norm,
    NormOp,
    OpHeader,
    RotaryOp,
    SoftcapOp,
)

PROGRAM_VERSION = 12


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
        ("mamba2", Mamba2Op),
        ("mamba", MambaOp),
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
        ("after_slots", c_void_p),
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
    *(Mamba2Op, MambaOp),
)


def structures_match(library: ctypes.CDLL) -> bool:
    """Compare the library's version and structures with those mirrored here."""
    sizes = [library.struct_bytes(i) for i in range(len(STRUCTURES) + 1)]
    expected = [*(ctypes.sizeof(structure) for structure in STRUCTURES), -1]
    return bool(library.program_version() == PROGRAM_VERSION) and sizes == expected
