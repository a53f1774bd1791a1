"""Activation function of an MLP or a gate: `kernels/layers/act_and_mul.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

KINDS = ("relu", "silu", "gelu", "gelu_tanh", "relu2")
_THREADS = 128
_ACCESSES = ((8, 4), (8, 1), (1, 1))  # elements that a thread loads at once, and its rows


def _spec(dtype: str, kind: str, gated: bool, width: int, rows: int) -> KernelSpec:
    """Return the kernel whose threads load `width` elements at once, of each of `rows` rows."""
    defines = {
        "DTYPE": dtype,
        "ACTIVATION": kind.upper(),
        "GATED": str(int(gated)),
        "WIDTH": str(width),
        "ROWS": str(rows),
    }
    arguments = (
        "pointer x, pointer up, pointer bias, pointer out, int64 x_stride, int num_rows, "
        "int row_size"
    )
    return KernelSpec("act_and_mul", arguments, defines)


VARIANTS = [
    _spec(dtype, kind, gated, width, rows)
    for dtype in DTYPE_NAMES.values()
    for kind in KINDS
    for gated in (False, True)
    for width, rows in _ACCESSES
] + [
    _spec(dtype, "sigmoid", True, width, rows)
    for dtype in DTYPE_NAMES.values()
    for width, rows in _ACCESSES
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
    _launch(gpu, kind, x, up, bias, out, gated=gated or up is not None)


def sigmoid_gate(gpu: Gpu, x: Tensor, gates: Tensor) -> None:
    """Multiply x [n, row_size] by the sigmoid of `gates` [n, row_size] in place.

    The rows of `gates` may be apart, as columns of a wider matrix are, by multiples of 16 bytes.
    """
    check_tensor("x", x, x.shape, x.dtype, gpu)
    strides_fit = gates.stride(1) == 1 and gates.stride(0) * gates.itemsize % 16 == 0
    if gates.shape != x.shape or not (strides_fit and gates.data_ptr() % 16 == 0):
        raise ValueError(
            f"gates must be {list(x.shape)} with rows of 16 bytes, not {list(gates.shape)} with"
            f" strides {gates.stride()}"
        )
    check_tensor("gates", gates[:1], (min(1, len(x)), x.shape[1]), x.dtype, gpu)
    _launch(gpu, "sigmoid", gates, x, None, x, gated=True)


def _launch(
    gpu: Gpu,
    kind: str,
    x: Tensor,
    up: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    *,
    gated: bool,
) -> None:
    """Launch the kernel with checked tensors."""
    n, row_size = out.shape
    # Rows must begin at a multiple of one access.
    width = 1 if row_size % 8 or x.stride(0) % 8 else 8
    chunks = -(-row_size // (_THREADS * width))
    # With few rows, use as many threads as possible; with many, more loads in flight a thread.
    rows = 4 if n * chunks >= 16 * gpu.num_sms and width == 8 else 1
    kernel = gpu.kernel(_spec(DTYPE_NAMES[out.dtype], kind, gated, width, rows))
    if n == 0:
        return
    kernel(
        (-(-n // rows), chunks),
        _THREADS,
        num_bytes=x.nbytes + out.nbytes + (0 if up is None else up.nbytes),
        x=x,
        up=up,
        bias=bias,
        out=out,
        x_stride=x.stride(0),
        num_rows=n,
        row_size=row_size,
    )
