"""RMSNorm and LayerNorm with residual addition: `kernels/layers/norm.cu` and `add_norm.cu`."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu

# Threads of a block, and vectors of 8 columns in each thread's registers. A row uses the first
# layout that holds it.
_IN_REGISTERS = ((128, 1), (256, 1), (256, 2), (512, 2), (512, 3))
_IN_PASSES = (256, 0)
LAYOUTS = (*_IN_REGISTERS, _IN_PASSES)


def norm(
    gpu: Gpu,
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    delta: Tensor | None = None,
    shift: Tensor | None = None,
    layer_norm: bool = False,
    weight_offset: float = 0.0,
) -> None:
    """Add delta [n, hidden_size] to x, fp32 [n, hidden_size], in place; write its norm to `out`.

    All but x have the weight's dtype. The norm is RMSNorm, or LayerNorm with bias `shift`
    [hidden_size]; `weight_offset` is added to the weight. weight and shift must be constant: the
    kernel reads them before the upstream kernel ends.
    """
    threads, vectors = _layout(x.shape[1])
    kernel = gpu.kernel(
        "norm", DTYPE=weight.dtype, LAYER_NORM=layer_norm, BLOCK=threads, VECTORS=vectors
    )
    kernel(
        len(x),
        threads,
        num_bytes=x.nbytes + out.nbytes + (0 if delta is None else x.nbytes + delta.nbytes),
        x=x,
        delta=delta,
        weight=weight,
        shift=shift,
        out=out,
        eps=eps,
        weight_offset=weight_offset,
    )


def add_norm(
    gpu: Gpu,
    x: Tensor,
    delta: Tensor,
    weight: Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
    zero_delta: bool = False,
    scale: Tensor | None = None,
    copy: Tensor | None = None,
) -> None:
    """Add the RMSNorm of delta [n, hidden_size] to x, fp32 [n, hidden_size], in place.

    weight [hidden_size] plus `weight_offset` scales the norm. delta has the weight's dtype; with
    `zero_delta` it is fp32 and is set to zero after it has been read. x is then multiplied by
    `scale` [1], and written to `copy` [n, hidden_size]; both have the weight's dtype. weight and
    scale must be constant: the kernel reads them before the upstream kernel ends.
    """
    threads, vectors = _layout(x.shape[1])
    kernel = gpu.kernel(
        "add_norm", DTYPE=weight.dtype, ZERO_DELTA=zero_delta, BLOCK=threads, VECTORS=vectors
    )
    kernel(
        len(x),
        threads,
        num_bytes=2 * x.nbytes + delta.nbytes * (1 + zero_delta),
        x=x,
        delta=delta,
        weight=weight,
        scale=scale,
        copy=copy,
        eps=eps,
        weight_offset=weight_offset,
    )


def _layout(hidden_size: int) -> tuple[int, int]:
    """Return a block's threads and the vectors of a row in each thread's registers."""
    if hidden_size % 8 == 0:
        for threads, vectors in _IN_REGISTERS:
            if hidden_size <= 8 * threads * vectors:
                return threads, vectors
    return _IN_PASSES
