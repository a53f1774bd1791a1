"""What each token's experts give, weighted and added up: `kernels/moe/expert_down.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

_WARPS, _ROWS = 8, 4

VARIANTS = [{"DTYPE": name} for name in DTYPE_NAMES.values()]


def expert_down_fits(gpu: Gpu, inner: int, chosen: int, itemsize: int) -> bool:
    """Whether the vectors of a token's experts fit a block's shared memory."""
    return inner * itemsize % 16 == 0 and chosen * inner * itemsize + 1024 <= gpu.block_shared_bytes


def expert_down(
    gpu: Gpu, x: Tensor, addresses: Tensor, ids: Tensor, shares: Tensor, out: Tensor
) -> None:
    """Write the sum over a token's experts of share * (matrix · x) to out, fp32 [n, rows].

    x is T [n, chosen, inner]. `addresses` int64 [experts] are those of each expert's contiguous
    matrix T [rows, inner]; `ids` int32 [n, chosen] are inside them: neither is checked. `shares`
    are fp32 [n, chosen].
    """
    (n, chosen, inner), rows = x.shape, out.shape[1]
    if not expert_down_fits(gpu, inner, chosen, x.itemsize):
        raise ValueError(f"{chosen} vectors of {inner} elements do not fit this kernel")
    check_tensor("x", x, (n, chosen, inner), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("shares", shares, (n, chosen), "float32", gpu)
    check_tensor("out", out, (n, rows), "float32", gpu)
    if n == 0:
        return
    spec = KernelSpec("expert_down", "pppppiii", {"DTYPE": DTYPE_NAMES[x.dtype]})
    gpu.kernel(spec)(
        (-(-rows // _ROWS), n),
        32 * _WARPS,
        x,
        addresses,
        ids,
        shares,
        out,
        rows,
        inner,
        chosen,
        shared_bytes=chosen * inner * x.itemsize,
        num_bytes=rows * x.nbytes,
    )
