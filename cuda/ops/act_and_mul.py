"""Activation function of an MLP, with bias and gating: `kernels/layers/act_and_mul.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

KINDS = ("relu", "silu", "gelu", "gelu_tanh", "relu2")
_THREADS = 128


def _spec(dtype: str, kind: str, gated: bool, width: int, rows: int) -> KernelSpec:
    """Return the kernel whose threads load `width` elements at once, of each of `rows` rows."""
    defines = {
        "DTYPE": dtype,
        "ACTIVATION": kind.upper(),
        "GATED": str(int(gated)),
        "WIDTH": str(width),
        "ROWS": str(rows),
    }
    arguments = "pointer x, pointer up, pointer bias, pointer out, int num_rows, int row_size"
    return KernelSpec("act_and_mul", arguments, defines)


VARIANTS = [
    _spec(dtype, kind, gated, width, rows)
    for dtype in DTYPE_NAMES.values()
    for kind in KINDS
    for gated in (False, True)
    for width, rows in ((8, 4), (8, 1), (1, 1))
]


def act_and_mul(
    gpu: Gpu,
    x: Tensor,
    out: Tensor,
    kind: str,
    *,
    bias: Tensor | None = None,
    gated: bool = False,
    up: Tensor | None = None,
) -> None:
    """Write act(x + bias) to out [n, row_size], all of one dtype; `kind` is one of `KINDS`.

    With `gated`, x is [n, 2 * row_size] and bias [2 * row_size], the gate's half first, and the
    result is act(gate + bias) * (up + bias). With `up` [n, row_size] x is the gate alone. If x is
    [n, row_size], `out` may be x itself. The bias must be constant: the kernel reads it before the
    upstream kernel ends.
    """
    if kind not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, not {kind!r}")
    n, row_size = out.shape
    columns = 2 * row_size if gated else row_size
    check_tensor("x", x, (n, row_size if up is not None else columns), out.dtype, gpu)
    check_tensor("up", up, (n, row_size), out.dtype, gpu)
    if up is not None and bias is not None:
        raise ValueError("a gate of its own has no bias")
    check_tensor("out", out, (n, row_size), out.dtype, gpu)
    check_tensor("bias", bias, (columns,), out.dtype, gpu)
    width = 1 if row_size % 8 else 8  # rows must begin at a multiple of one access
    chunks = -(-row_size // (_THREADS * width))
    # With few rows, use as many threads as possible; with many, more loads in flight a thread.
    rows = 4 if n * chunks >= 16 * gpu.num_sms and width == 8 else 1
    kernel = gpu.kernel(_spec(DTYPE_NAMES[out.dtype], kind, gated or up is not None, width, rows))
    if n == 0:
        return
    kernel(
        (-(-n // rows), chunks),
        _THREADS,
        num_bytes=x.nbytes + out.nbytes,
        x=x,
        up=up,
        bias=bias,
        out=out,
        num_rows=n,
        row_size=row_size,
    )
