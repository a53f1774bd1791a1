"""Run single operations of the CPU kernels on tensors, for the variants that this machine runs."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from swiftchat.engine.cpu import build, structures
from swiftchat.engine.cpu.program import Pool, Program, RunInputs, SpanRows
from swiftchat.engine.cpu.structures import AnyOp, Format, Matrix, Norm, NormKind, RowSet

VARIANTS = ("plain", "avx2", "avx512", "avx512bf16")
FORMATS = {
    torch.float32: Format.F32,
    torch.float16: Format.F16,
    torch.bfloat16: Format.BF16,
    torch.float8_e4m3fn: Format.FP8,
}
# A test with the argument `variant` runs once for each.
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@cache
def load(variant: str) -> ctypes.CDLL:
    """Compile a variant, unless that was done before, and load it; skip the test without it."""
    words = {"avx2": {"avx2", "f16c"}, "avx512": {"avx512_vnni"}, "avx512bf16": {"avx512_bf16"}}
    flags = set(Path("/proc/cpuinfo").read_text().split())
    if not words.get(variant, set()) <= flags:
        pytest.skip(f"this processor has no {variant}")
    target = build.host_target()
    assert target is not None
    (path,) = build.build(target, variants=[variant])
    library = ctypes.CDLL(str(path))
    structures.declare_functions(library)
    assert structures.structures_match(library)
    return library


@cache
def pool(variant: str, num_threads: int = 2) -> Pool:
    return Pool(load(variant), num_threads)


def aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous copy that starts at a multiple of 64 bytes."""
    nbytes = tensor.numel() * tensor.element_size()
    memory = np.zeros(nbytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    copy = torch.from_numpy(memory[start : start + nbytes]).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def float_matrix(tensor: Tensor) -> Matrix:
    """Describe a float tensor [rows, cols]; the caller keeps it alive."""
    rows, cols = tensor.shape
    return Matrix(
        format=FORMATS[tensor.dtype],
        rows=rows,
        cols=cols,
        stride=tensor.stride(0) * tensor.element_size(),
        data=tensor.data_ptr(),
    )


def norm(kind: NormKind, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Norm:
    """Describe a norm with fp32 weights; the caller keeps them alive."""
    return Norm(kind, eps, weight.data_ptr(), None if bias is None else bias.data_ptr())


def run_inputs(
    num_tokens: int,
    *,
    ids: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    second_positions: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    logits_rows: Sequence[int] | None = None,
    spans: Sequence[SpanRows] = (),
) -> RunInputs:
    """Return the inputs of a batch; what is not given is 0, 1, 2, …"""

    def tensor(values: Sequence[int] | None) -> Tensor:
        return torch.tensor(range(num_tokens) if values is None else values, dtype=torch.int32)

    return RunInputs(
        ids=tensor(ids),
        positions=tensor(positions),
        slots=tensor(slots),
        logits_rows=tensor(logits_rows),
        spans=spans,
        second_positions=None if second_positions is None else tensor(second_positions),
    )


def run_ops(
    variant: str,
    ops: Sequence[AnyOp],
    buffers: Sequence[tuple[RowSet, int]],
    contents: Mapping[int, Tensor],
    inputs: RunInputs,
    num_threads: int = 2,
) -> list[Tensor]:
    """Run operations on buffers with these contents (others hold NaN); return all buffers."""
    program = Program(pool(variant, num_threads), ops, buffers)
    program.begin(len(inputs.ids), len(inputs.logits_rows))
    for index in range(len(buffers)):
        content = contents.get(index)
        program.buffer(index).copy_(torch.tensor(torch.nan) if content is None else content)
    program.run(inputs)
    return [program.buffer(index).clone() for index in range(len(buffers))]
