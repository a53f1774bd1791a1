"""Copy blocks of the KV cache: `kernels/attention/copy_blocks.cu`."""

from math import prod

from torch import Tensor

from swiftchat.cuda.checks import MAX_GRID_Y, check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_ACCESS_BYTES = 16
_THREADS, _UNROLL = 256, 4

_SPEC = KernelSpec(
    "copy_blocks",
    "pointer source, pointer destination, pointer copies, int64 source_layer_vectors, "
    "int64 destination_layer_vectors, int block_vectors",
)
VARIANTS = [_SPEC]


def copy_blocks(gpu: Gpu, cache: Tensor, copies: Tensor, destination: Tensor | None = None) -> None:
    """Copy block copies[i][0] of the cache to copies[i][1], by default of the same, in every layer.

    The cache is T [num_layers, num_blocks, 2 * num_kv_heads, block_size, head_dim]; copies are
    int32 [m, 2] on the GPU. `destination` has its own number of blocks. To swap, one of the two is
    in pinned host memory, which the GPU reads or writes itself. No block may be both read and
    written; this is not checked.
    """
    destination = cache if destination is None else destination
    num_layers, num_blocks, *block_shape = cache.shape
    other_shape = (num_layers, destination.shape[1], *block_shape)
    check_tensor("cache", cache, tuple(cache.shape), cache.dtype, gpu, may_be_pinned=True)
    check_tensor("destination", destination, other_shape, cache.dtype, gpu, may_be_pinned=True)
    m = copies.shape[0]
    check_tensor("copies", copies, (m, 2), "int32", gpu)
    block_bytes = cache.element_size() * prod(block_shape)
    if block_bytes % _ACCESS_BYTES or block_bytes >= 2**31:
        raise ValueError(
            f"a block must have a multiple of {_ACCESS_BYTES} bytes, not {block_bytes}"
        )
    if max(m, num_layers) > MAX_GRID_Y:
        raise ValueError(f"at most {MAX_GRID_Y} copies and layers, not {m} and {num_layers}")
    if m == 0 or cache.numel() == 0:
        return
    block_vectors = block_bytes // _ACCESS_BYTES
    gpu.kernel(_SPEC)(
        (-(-block_vectors // (_THREADS * _UNROLL)), m, num_layers),
        _THREADS,
        num_bytes=2 * m * num_layers * block_bytes,
        source=cache,
        destination=destination,
        copies=copies,
        source_layer_vectors=num_blocks * block_vectors,
        destination_layer_vectors=destination.shape[1] * block_vectors,
        block_vectors=block_vectors,
    )
