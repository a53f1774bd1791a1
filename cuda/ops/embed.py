"""Token embeddings, and learned positions where a model has them: `kernels/layers/embed.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.packed_layout import GROUPS
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix

_PER_BLOCK = 128 * 4  # accesses

_PACKED = [("INT8", 0), ("FP8", 0), *((form, g) for form in GROUPS for g in GROUPS[form])]
_DTYPES = list(DTYPE_NAMES.values())
# Of packed tables only one dtype each: it is that of the positions alone.
VARIANTS = [
    {"DTYPE": name, "WIDTH": width, "FORM": "PLAIN", "GROUP": "0"}
    for name in _DTYPES
    for width in ("8", "1")
] + [
    {"DTYPE": _DTYPES[i % len(_DTYPES)], "WIDTH": "8", "FORM": form, "GROUP": str(group)}
    for i, (form, group) in enumerate(_PACKED)
]


def embed_spec(table: Matrix) -> KernelSpec:
    packed = table if isinstance(table, PackedMatrix) else None
    defines = {
        "DTYPE": DTYPE_NAMES[table.dtype],
        "WIDTH": str(_width(table.shape[1])),
        "FORM": packed.form if packed else "PLAIN",
        "GROUP": str(packed.group if packed else 0),
    }
    return KernelSpec("embed", "ppppppiiif", defines)


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
    """Write table[ids] * scale (+ position_table[positions]) to `out`, fp32 [n, hidden].

    ids and positions are int32 [n]. The table [rows, hidden] begins with the embedding of
    `first_id`; ids that are not in it give zeros. A packed one's numbers are not rounded to its
    dtype on the way. Positions are inside their table [rows, hidden]; that is not checked.
    """
    (n,) = ids.shape
    vocab, hidden = table.shape
    check_tensor("ids", ids, (n,), "int32", gpu)
    rows, row_scale = table, None
    if isinstance(table, PackedMatrix):
        table.check(gpu)
        rows, row_scale = table.codes, table.row_scale
    else:
        check_tensor("table", table, (vocab, hidden), table.dtype, gpu)
    check_tensor("out", out, (n, hidden), "float32", gpu)
    check_tensor("positions", positions, (n,), "int32", gpu)
    if (positions is None) != (position_table is None):
        raise ValueError("positions and position_table come together")
    num_bytes = n * table.nbytes // max(1, vocab) + out.nbytes
    if position_table is not None:
        places = position_table.shape[0]
        check_tensor("position_table", position_table, (places, hidden), table.dtype, gpu)
        num_bytes += n * hidden * table.dtype.itemsize
    if n == 0:
        return
    chunks = -(-hidden // (_PER_BLOCK * _width(hidden)))
    gpu.kernel(embed_spec(table))(
        (n, chunks),
        128,
        ids,
        rows,
        row_scale,
        positions,
        position_table,
        out,
        hidden,
        first_id,
        vocab,
        scale,
        num_bytes=num_bytes,
    )


def _width(hidden: int) -> int:
    """Elements of one access: rows must begin at a multiple of it."""
    return 1 if hidden % 8 else 8
