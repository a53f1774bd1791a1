"""Activation function of an MLP or a gate: `kernels/layers/act_and_mul.cu`."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu

KINDS = ("relu", "silu", "gelu", "gelu_tanh", "relu2")
_THREADS = 128


def act_and_mul(
    gpu: Gpu, x: Tensor, out: Tensor, kind: str, *, gated: bool = False, up: Tensor | None = None
) -> None:
    """Write act(x) to out [n, row_size], all of one dtype; `kind` is one of `KINDS`.

    With `gated`, x is [n, 2 * row_size], the gate's half first, and the result is act(gate) * up.
    With `up` [n, row_size] x is the gate alone. If x is [n, row_size], `out` may be x itself.
    """
    if kind not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, not {kind!r}")
    columns = out.shape[1] * (2 if gated and up is None else 1)
    _launch(gpu, kind, x, up, out, columns, gated=gated or up is not None)


def sigmoid_gate(gpu: Gpu, x: Tensor, gates: Tensor) -> None:
    """Multiply x [n, row_size] by the sigmoid of `gates` [n, row_size] in place.

    The rows of `gates` may be apart, as columns of a wider matrix are, by multiples of 16 bytes.
    """
    _launch(gpu, "sigmoid", gates, x, x, x.shape[1], gated=True)


def _launch(
    gpu: Gpu, kind: str, x: Tensor, up: Tensor | None, out: Tensor, columns: int, *, gated: bool
) -> None:
    n, row_size = out.shape
    # Rows must begin at a multiple of one access.
    width = 1 if row_size % 8 or x.stride(0) % 8 else 8
    chunks = -(-row_size // (_THREADS * width))
    # With few rows, use as many threads as possible; with many, more loads in flight a thread.
    rows = 4 if n * chunks >= 16 * gpu.num_sms and width == 8 else 1
    kernel = gpu.kernel(
        "act_and_mul",
        DTYPE=out.dtype,
        ACTIVATION=kind.upper(),
        GATED=gated,
        WIDTH=width,
        ROWS=rows,
    )
    kernel(
        (-(-n // rows), chunks),
        _THREADS,
        num_bytes=x.nbytes + out.nbytes + (0 if up is None else up.nbytes),
        x=x,
        up=up,
        out=out,
        columns=columns,
        row_size=row_size,
    )
