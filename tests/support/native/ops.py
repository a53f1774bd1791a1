"""Run single operations of the CPU kernels on tensors, for the variants that this machine runs."""

from collections.abc import Mapping, Sequence
from ctypes import Structure
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from swiftchat.engine.cpu.native import Format, Matrix, Norm, NormKind, RowSet
from swiftchat.engine.cpu.program import Pool, Program, RunInputs, SpanRows
from tests.support.native.libraries import VARIANT_NAMES, load

FORMATS = {
    torch.float32: Format.F32,
    torch.float16: Format.F16,
    torch.bfloat16: Format.BF16,
    torch.float8_e4m3fn: Format.FP8,
}
# A test with the argument `variant` runs once for each.
each_variant = pytest.mark.parametrize("variant", VARIANT_NAMES)


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
    sets: Sequence[int] | None = None,
) -> RunInputs:
    """Return the inputs of a batch of `num_tokens` rows.

    The default of ids, positions, slots and logits_rows is 0 .. num_tokens - 1.
    """

    def tensor(values: Sequence[int] | None) -> Tensor:
        return torch.tensor(range(num_tokens) if values is None else values, dtype=torch.int32)

    return RunInputs(
        ids=tensor(ids),
        positions=tensor(positions),
        slots=tensor(slots),
        logits_rows=tensor(logits_rows),
        spans=spans,
        second_positions=None if second_positions is None else tensor(second_positions),
        sets=None if sets is None else tensor(sets),
    )


def run_ops(
    variant: str,
    ops: Sequence[Structure],
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
