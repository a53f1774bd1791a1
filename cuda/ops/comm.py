"""All-reduce and all-gather through peer buffers: `kernels/comm/`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.peer_memory import MAX_WORLD_SIZE, PeerBuffer

_THREADS = 128
_ELEMENTS_PER_BLOCK = 4 * _THREADS

_ALL_GATHER = KernelSpec(
    "all_gather", "pointer buffer, pointer out, int64 stride, int shard_width, int width"
)


def _all_reduce_spec(dtype: str, world_size: int, send: bool) -> KernelSpec:
    arguments = (
        "pointer part, pointer x, pointer buffer, pointer addresses, int64 stride, "
        "int num_elements, int rank, int accumulate"
    )
    defines = {"DTYPE": dtype, "SEND": str(int(send)), "WORLD_SIZE": str(world_size)}
    return KernelSpec("all_reduce", arguments, defines)


VARIANTS = [
    *(
        _all_reduce_spec(dtype, world_size, send)
        for dtype, send in (*((dtype, True) for dtype in DTYPE_NAMES.values()), ("float", False))
        for world_size in (2, 4, MAX_WORLD_SIZE)
    ),
    _ALL_GATHER,
]


def all_reduce(
    gpu: Gpu,
    x: Tensor,
    buffer: PeerBuffer,
    part: Tensor | None = None,
    *,
    accumulate: bool = True,
) -> None:
    """Add the sum of all ranks' parts to x, fp32 [n, hidden_size], in place.

    The result has the same bits on every rank. `part` [n, hidden_size] is this rank's part; if it
    is None, `linear_send` has already sent it to the same buffer. Without `accumulate`, x is
    overwritten with the sum. All ranks must make the same calls in the same order, and use another
    buffer in between before they use the same one again.
    """
    n, hidden_size = x.shape
    num_elements = n * hidden_size
    if num_elements % 4:
        raise ValueError(f"the size of the parts must be a multiple of 4, not {num_elements}")
    check_tensor("x", x, (n, hidden_size), "float32", gpu)
    buffer.check_capacity(num_elements, gpu)
    dtype = torch.float32 if part is None else part.dtype
    check_tensor("part", part, (n, hidden_size), dtype, gpu)
    if num_elements == 0:
        return
    gpu.kernel(_all_reduce_spec(DTYPE_NAMES[dtype], buffer.world_size, part is not None))(
        -(-num_elements // _ELEMENTS_PER_BLOCK),
        _THREADS,
        num_bytes=2 * x.nbytes,
        part=part,
        x=x,
        buffer=buffer.own,
        addresses=buffer.addresses,
        stride=buffer.own.stride(0),
        num_elements=num_elements,
        rank=buffer.rank,
        accumulate=int(accumulate),
    )


def all_gather(gpu: Gpu, out: Tensor, buffer: PeerBuffer, shard_width: int) -> None:
    """Write the columns that `linear_send` of all ranks sent to this buffer to out fp32 [n, width].

    Each rank sent [n, shard_width]; the last rank sent the remaining columns.
    """
    n, width = out.shape
    world_size = buffer.world_size
    if shard_width % 4 or width % 4:
        raise ValueError(f"shards of {shard_width} of {width} columns are not multiples of 4")
    if not (world_size - 1) * shard_width < width <= world_size * shard_width:
        raise ValueError(f"{world_size} shards of {shard_width} do not make {width} columns")
    check_tensor("out", out, (n, width), "float32", gpu)
    buffer.check_capacity(n * shard_width, gpu)
    if n == 0:
        return
    gpu.kernel(_ALL_GATHER)(
        (-(-shard_width // _ELEMENTS_PER_BLOCK), world_size, n),
        _THREADS,
        num_bytes=3 * out.nbytes,
        buffer=buffer.own,
        out=out,
        stride=buffer.own.stride(0),
        shard_width=shard_width,
        width=width,
    )
