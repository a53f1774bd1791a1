"""Embedding lookup and row gathering: `kernels/layers/embed.cu` and `gather_rows.cu`."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packed_matrix import Matrix, storage, storage_macros

_THREADS, _UNROLL = 128, 4


def embed(
    gpu: Gpu, ids: Tensor, table: Matrix, out: Tensor, *, scale: float = 1.0, first_id: int = 0
) -> None:
    """Write table[ids - first_id] * scale to `out`, fp32 [n, hidden_size]; ids are int32 [n].

    Ids outside the table [num_ids, hidden_size] give zeros. Values of a packed table are not
    rounded to its dtype.
    """
    n, (num_ids, hidden_size) = len(ids), table.shape
    width = 1 if hidden_size % 8 else 8  # rows must begin at a multiple of one access
    elements, row_scale = storage(table)
    gpu.kernel("embed", WIDTH=width, **storage_macros(table))(
        (n, -(-hidden_size // (_THREADS * _UNROLL * width))),
        _THREADS,
        num_bytes=n * table.nbytes // max(1, num_ids) + out.nbytes,
        ids=ids,
        table=elements,
        row_scale=row_scale,
        out=out,
        hidden_size=hidden_size,
        first_id=first_id,
        num_ids=num_ids,
        scale=scale,
    )


def gather_rows(gpu: Gpu, x: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write x[rows] to `out`, fp32 [m, hidden_size].

    x is fp32 [n, hidden_size]; rows are int32 [m] and must be below n; this is not checked.
    """
    hidden_size = x.shape[1]
    width = 1 if hidden_size % 4 else 4
    gpu.kernel("gather_rows", WIDTH=width)(
        (len(rows), -(-hidden_size // (_THREADS * _UNROLL * width))),
        _THREADS,
        num_bytes=2 * out.nbytes,
        x=x,
        rows=rows,
        out=out,
    )
