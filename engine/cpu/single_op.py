"""Single operations of the native kernels for tensors of torch: matmul, and rows of a table."""

from collections.abc import Sequence
from ctypes import Structure, byref, c_void_p, pointer

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import EmbedOp, LinearOp, Matrix, RowSet
from swiftchat.engine.cpu.program import ALIGNMENT_BYTES, Pool


def matmul(pool: Pool, matrices: Sequence[Matrix], x: Tensor, *, exact: bool) -> Tensor:
    """Return x [n, cols] times the transposed matrices, one below the other: fp32 [n, rows].

    Without `exact` quantized matrices are multiplied with x as 16-bit integers.
    """
    x = _aligned(x.float().contiguous())
    rows = sum(matrix.rows for matrix in matrices)
    out = torch.empty(len(x), rows)
    parts = (Matrix * len(matrices))(*matrices)
    op = LinearOp(
        x=0,
        out=1,
        num_parts=len(parts),
        rows=rows,
        exact=exact,
        parts=parts,
    )
    _run(pool, op, [x, out], len(x))
    return out


def table_rows(pool: Pool, table: Matrix, ids: Tensor) -> Tensor:
    """Return the rows `ids` [n] of the table, which must be in range: fp32 [n, cols]."""
    out = torch.empty(len(ids), table.cols)
    op = EmbedOp(out=0, scale=1.0, table=table)
    _run(pool, op, [out], len(ids), ids.to(torch.int32).contiguous())
    return out


def _run(
    pool: Pool, op: Structure, tensors: Sequence[Tensor], num_rows: int, ids: Tensor | None = None
) -> None:
    """Run `op`, whose buffers are the fp32 `tensors` [num_rows, width]; raises MemoryError."""
    if not num_rows:
        return
    library = pool.library
    buffers = (native.Buffer * len(tensors))(*((RowSet.TOKENS, t.shape[1]) for t in tensors))
    program = native.Program(1, len(tensors), pointer(native.op_union(op)), buffers)
    nbytes = library.program_workspace_bytes(byref(program), num_rows, 0)
    workspace = _aligned(torch.empty(nbytes + ALIGNMENT_BYTES, dtype=torch.uint8))
    run = native.Run(
        num_tokens=num_rows,
        num_threads=pool.num_threads,
        ids=None if ids is None else ids.data_ptr(),
        buffers=(c_void_p * len(tensors))(*(t.data_ptr() for t in tensors)),
        widths=buffers,
        workspace=workspace.data_ptr(),
    )
    if library.run_program(pool.handle, byref(program), byref(run)):
        raise MemoryError("The CPU kernels are out of memory")


def _aligned(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if it does not begin at 64 bytes; torch allocates so."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor
