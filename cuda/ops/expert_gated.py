"""Gate and up products of each token's experts: `kernels/moe/expert_gated.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

_WARPS, _PAIRS = 8, 2

VARIANTS = [
    {"DTYPE": name, "ACTIVATION": kind}
    for name in DTYPE_NAMES.values()
    for kind in ("SILU", "GELU_TANH")
]


def expert_gated_fits(gpu: Gpu, k: int, itemsize: int) -> bool:
    """Whether a vector fits a block's shared memory, twice, and is whole loads."""
    return k * itemsize % 16 == 0 and 2 * k * itemsize <= gpu.block_shared_bytes


def expert_gated(
    gpu: Gpu, x: Tensor, addresses: Tensor, ids: Tensor, out: Tensor, activation: str
) -> None:
    """Write activation(gate · x) * (up · x) to out [n, chosen, inner], T like x [n, k].

    `addresses` int64 [experts] are those of each expert's contiguous matrix T [2 * inner, k], the
    gate's rows first; `ids` int32 [n, chosen] are inside them: neither is checked.
    """
    (n, k), (_, chosen, inner) = x.shape, out.shape
    if not expert_gated_fits(gpu, k, x.itemsize):
        raise ValueError(f"vectors of {k} elements do not fit this kernel")
    check_tensor("x", x, (n, k), x.dtype, gpu)
    check_tensor("out", out, (n, chosen, inner), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    if n == 0:
        return
    defines = {"DTYPE": DTYPE_NAMES[x.dtype], "ACTIVATION": activation.upper()}
    gpu.kernel(KernelSpec("expert_gated", "ppppiii", defines))(
        (-(-inner // (_WARPS * _PAIRS)), n * chosen),
        32 * _WARPS,
        x,
        addresses,
        ids,
        out,
        k,
        inner,
        chosen,
        shared_bytes=k * x.itemsize,
        num_bytes=2 * k * out.nbytes,
    )
