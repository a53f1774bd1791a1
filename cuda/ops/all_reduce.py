"""The ranks' parts of a sum added to the residual stream: `kernels/comm/all_reduce.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.peer_memory import MAX_WORLD, PeerBuffer

_THREADS = 128

VARIANTS = [
    {"DTYPE": name, "SEND": send, "WORLD": str(world)}
    for name, send in (*((name, "1") for name in DTYPE_NAMES.values()), ("float", "0"))
    for world in (2, 4, MAX_WORLD)
]


def all_reduce_spec(dtype: torch.dtype, world: int, send: bool) -> KernelSpec:
    defines = {"DTYPE": DTYPE_NAMES[dtype], "SEND": str(int(send)), "WORLD": str(world)}
    return KernelSpec("all_reduce", "ppppliii", defines)


def all_reduce(
    gpu: Gpu, x: Tensor, inbox: PeerBuffer, y: Tensor | None = None, *, adds: bool = True
) -> None:
    """Add all ranks' parts to x, fp32 [n, hidden], in place: the same bits on every rank.

    y [n, hidden] is this rank's part; None: `linear_send` has sent it to this inbox. Without
    `adds`, x is not read and becomes the sum. Every rank must call this in the same order, with
    another exchange before the same inbox comes again.
    """
    n, hidden = x.shape
    numbers = n * hidden
    if numbers % 4:
        raise ValueError(f"the parts must have a multiple of 4 numbers, not {numbers}")
    check_tensor("x", x, (n, hidden), "float32", gpu)
    inbox.check_part(numbers, gpu)
    dtype = torch.float32 if y is None else y.dtype
    check_tensor("y", y, (n, hidden), dtype, gpu)
    if numbers == 0:
        return
    gpu.kernel(all_reduce_spec(dtype, inbox.world, y is not None))(
        -(-numbers // (4 * _THREADS)),
        _THREADS,
        y,
        x,
        inbox.own,
        inbox.addresses,
        inbox.own.stride(0),
        numbers,
        inbox.rank,
        int(adds),
        num_bytes=2 * x.nbytes,
    )
