"""Token embeddings, and learned positions where a model has them: `kernels/embed.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.check import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

_PER_BLOCK = 128 * 4  # accesses

VARIANTS = [
    {"DTYPE": name, "WIDTH": width} for name in DTYPE_NAMES.values() for width in ("8", "1")
]


def embed_spec(dtype: torch.dtype, hidden: int) -> KernelSpec:
    return KernelSpec(
        "embed", "pppppiiif", {"DTYPE": DTYPE_NAMES[dtype], "WIDTH": str(_width(hidden))}
    )


def embed(gpu: Gpu, ids: Tensor, table: Tensor, out: Tensor, *, positions: Tensor | None = None,
          position_table: Tensor | None = None, scale: float = 1.0,
          first_id: int = 0) -> None:  # fmt: skip
    """Write table[ids] * scale (+ position_table[positions]) to `out`, fp32 [n, hidden].

    ids and positions are int32 [n]. The table [rows, hidden] begins with the embedding of
    `first_id`; ids that are not in it give zeros. Positions are inside their table [rows,
    hidden]; that is not checked.
    """
    (n,) = ids.shape
    vocab, hidden = table.shape
    check_tensor("ids", ids, (n,), "int32", gpu)
    check_tensor("table", table, (vocab, hidden), table.dtype, gpu)
    check_tensor("out", out, (n, hidden), "float32", gpu)
    check_tensor("positions", positions, (n,), "int32", gpu)
    if (positions is None) != (position_table is None):
        raise ValueError("positions and position_table come together")
    num_bytes = n * hidden * table.element_size() + out.nbytes
    if position_table is not None:
        rows = position_table.shape[0]
        check_tensor("position_table", position_table, (rows, hidden), table.dtype, gpu)
        num_bytes += n * hidden * table.element_size()
    if n == 0:
        return
    chunks = -(-hidden // (_PER_BLOCK * _width(hidden)))
    gpu.kernel(embed_spec(table.dtype, hidden))(
        (n, chunks), 128, ids, table, positions, position_table, out, hidden, first_id,
        vocab, scale,
        num_bytes=num_bytes,
    )  # fmt: skip


def _width(hidden: int) -> int:
    """Elements of one access: rows must begin at a multiple of it."""
    return 1 if hidden % 8 else 8
