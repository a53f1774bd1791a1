"""Embedding lookup and row gathering: `kernels/layers/embed.cu` and `gather_rows.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.packed_layout import GROUP_SIZES
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix

_THREADS, _UNROLL = 128, 4


def _embed_spec(dtype: str, width: int, scheme: str = "PLAIN", group_size: int = 0) -> KernelSpec:
    defines = {
        "DTYPE": dtype,
        "WIDTH": str(width),
        "SCHEME": scheme,
        "GROUP_SIZE": str(group_size),
    }
    arguments = (
        "pointer ids, pointer table, pointer row_scale, pointer positions, pointer position_table, "
        "pointer out, int hidden_size, int first_id, int num_ids, float scale"
    )
    return KernelSpec("embed", arguments, defines)


def _gather_rows_spec(width: int) -> KernelSpec:
    arguments = "pointer x, pointer rows, pointer out, int hidden_size"
    return KernelSpec("gather_rows", arguments, {"WIDTH": str(width)})


_DTYPES = list(DTYPE_NAMES.values())
_PACKED = [("INT8", 0), ("FP8", 0), *((s, size) for s in GROUP_SIZES for size in GROUP_SIZES[s])]
# For packed tables one dtype each is enough: it is only that of the positions.
VARIANTS = [
    *(_embed_spec(dtype, width) for dtype in _DTYPES for width in (8, 1)),
    *(_embed_spec(_DTYPES[i % 3], 8, *packing) for i, packing in enumerate(_PACKED)),
    *(_gather_rows_spec(width) for width in (4, 1)),
]


def embed(
    gpu: Gpu,
    ids: Tensor,
    table: Matrix,
    out: Tensor,
    *,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
    scale: float = 1.0,
    first_id: int = 0,
) -> None:
    """Write table[ids - first_id] * scale (+ position_table[positions]) to `out`.

    `out` is fp32 [n, hidden_size]; ids and positions are int32 [n]. Ids outside the table
    [num_ids, hidden_size] give zeros. Values of a packed table are not rounded to its dtype.
    Positions must be inside their table [max_positions, hidden_size]; this is not checked.
    """
    (n,) = ids.shape
    num_ids, hidden_size = table.shape
    check_tensor("ids", ids, (n,), "int32", gpu)
    check_tensor("out", out, (n, hidden_size), "float32", gpu)
    check_tensor("positions", positions, (n,), "int32", gpu)
    width = 1 if hidden_size % 8 else 8  # rows must begin at a multiple of one access
    if isinstance(table, PackedMatrix):
        table.check(gpu)
        data, row_scale = table.tiles, table.row_scale
        spec = _embed_spec(DTYPE_NAMES[table.dtype], width, table.scheme, table.group_size)
    else:
        check_tensor("table", table, (num_ids, hidden_size), table.dtype, gpu)
        data, row_scale = table, None
        spec = _embed_spec(DTYPE_NAMES[table.dtype], width)
    if (positions is None) != (position_table is None):
        raise ValueError("positions and position_table must be given together")
    num_bytes = n * table.nbytes // max(1, num_ids) + out.nbytes
    if position_table is not None:
        shape = (len(position_table), hidden_size)
        check_tensor("position_table", position_table, shape, table.dtype, gpu)
        num_bytes += n * hidden_size * table.dtype.itemsize
    if n == 0:
        return
    gpu.kernel(spec)(
        (n, -(-hidden_size // (_THREADS * _UNROLL * width))),
        _THREADS,
        num_bytes=num_bytes,
        ids=ids,
        table=data,
        row_scale=row_scale,
        positions=positions,
        position_table=position_table,
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
    n, hidden_size = x.shape
    (m,) = rows.shape
    check_tensor("x", x, (n, hidden_size), "float32", gpu)
    check_tensor("rows", rows, (m,), "int32", gpu)
    check_tensor("out", out, (m, hidden_size), "float32", gpu)
    if m == 0:
        return
    width = 1 if hidden_size % 4 else 4
    gpu.kernel(_gather_rows_spec(width))(
        (m, -(-hidden_size // (_THREADS * _UNROLL * width))),
        _THREADS,
        num_bytes=2 * out.nbytes,
        x=x,
        rows=rows,
        out=out,
        hidden_size=hidden_size,
    )
