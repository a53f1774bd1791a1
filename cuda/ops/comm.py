"""All-reduce and all-gather through peer buffers: `kernels/comm/`."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.peer_memory import PeerBuffer

_THREADS = 128
_ELEMENTS_PER_BLOCK = 4 * _THREADS


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
    num_elements = x.numel()
    if num_elements % 4:
        raise ValueError(f"the size of the parts must be a multiple of 4, not {num_elements}")
    buffer.check_capacity(num_elements)
    kernel = gpu.kernel(
        "all_reduce",
        DTYPE=torch.float32 if part is None else part.dtype,
        SEND=part is not None,
        WORLD_SIZE=buffer.world_size,
    )
    kernel(
        -(-num_elements // _ELEMENTS_PER_BLOCK),
        _THREADS,
        num_bytes=2 * x.nbytes,
        part=part,
        x=x,
        buffer=buffer.own,
        addresses=buffer.addresses,
        num_elements=num_elements,
        rank=buffer.rank,
        accumulate=accumulate,
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
    buffer.check_capacity(n * shard_width)
    gpu.kernel("all_gather")(
        (-(-shard_width // _ELEMENTS_PER_BLOCK), world_size, n),
        _THREADS,
        num_bytes=3 * out.nbytes,
        buffer=buffer.own,
        out=out,
        shard_width=shard_width,
    )
