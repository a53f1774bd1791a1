"""An MLP's activation function with bias and gate: `kernels/layers/activation.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

KINDS = ("relu", "silu", "gelu", "gelu_tanh")
_THREADS = 128

VARIANTS = [
    {"DTYPE": name, "ACTIVATION": kind.upper(), "GATED": gated, "WIDTH": width, "ROWS": rows}
    for name in DTYPE_NAMES.values()
    for kind in KINDS
    for gated in ("0", "1")
    for width, rows in (("8", "4"), ("8", "1"), ("1", "1"))
]


def activation_spec(
    dtype: torch.dtype, kind: str, gated: bool, width: int, rows: int = 1
) -> KernelSpec:
    """The kernel for rows of `width` results, each thread taking `rows` of them: 1 or 4."""
    if kind not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, not {kind!r}")
    defines = {
        "DTYPE": DTYPE_NAMES[dtype],
        "ACTIVATION": kind.upper(),
        "GATED": str(int(gated)),
        "WIDTH": str(_width(width)),
        "ROWS": str(rows if _width(width) == 8 else 1),
    }
    return KernelSpec("activation", "pppii", defines)


def activation(
    gpu: Gpu, x: Tensor, out: Tensor, kind: str, *, bias: Tensor | None = None, gated: bool = False
) -> None:
    """Write act(x + bias) to out [n, width], all of one dtype; `kind` is one of `KINDS`.

    Gated, x is [n, 2 * width], bias [2 * width], the gate's half first, and the result is
    act(gate + bias) * (up + bias). Not gated, `out` may be x itself. The bias is a constant:
    it is read before the kernel upstream has ended.
    """
    n, width = out.shape
    columns = 2 * width if gated else width
    check_tensor("x", x, (n, columns), out.dtype, gpu)
    check_tensor("out", out, (n, width), out.dtype, gpu)
    check_tensor("bias", bias, (columns,), out.dtype, gpu)
    chunks = -(-width // (_THREADS * _width(width)))
    # Few rows: as many threads as there can be. Many: more loads on the way in each of them.
    rows = 4 if n * chunks >= 16 * gpu.num_sms and _width(width) == 8 else 1
    kernel = gpu.kernel(activation_spec(out.dtype, kind, gated, width, rows))
    if n == 0:
        return
    kernel(
        (-(-n // rows), chunks), _THREADS, x, bias, out, n, width, num_bytes=x.nbytes + out.nbytes
    )


def _width(width: int) -> int:
    """Elements of one access: rows must begin at a multiple of it."""
    return 1 if width % 8 else 8
