"""The rows of the residual stream that go on to the logits: `kernels/layers/gather_rows.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_PER_BLOCK = 128 * 4  # accesses

VARIANTS = [{"WIDTH": "4"}, {"WIDTH": "1"}]


def gather_rows_spec(hidden: int) -> KernelSpec:
    return KernelSpec("gather_rows", "pppi", {"WIDTH": str(_width(hidden))})


def gather_rows(gpu: Gpu, x: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write x[rows] to `out`, fp32 [m, hidden].

    x is fp32 [n, hidden]; rows are int32 [m] and inside x; that is not checked.
    """
    n, hidden = x.shape
    (m,) = rows.shape
    check_tensor("x", x, (n, hidden), "float32", gpu)
    check_tensor("rows", rows, (m,), "int32", gpu)
    check_tensor("out", out, (m, hidden), "float32", gpu)
    if m == 0:
        return
    chunks = -(-hidden // (_PER_BLOCK * _width(hidden)))
    gpu.kernel(gather_rows_spec(hidden))(
        (m, chunks), 128, x, rows, out, hidden, num_bytes=2 * out.nbytes
    )


def _width(hidden: int) -> int:
    """Elements of one access: rows must begin at a multiple of it."""
    return 1 if hidden % 4 else 4
