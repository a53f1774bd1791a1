"""Copy blocks of the KV cache: `kernels/attention/copy_blocks.cu`."""

from math import prod

from torch import Tensor

from swiftchat.cuda.gpu import Gpu

_ACCESS_BYTES = 16
_THREADS, _UNROLL = 256, 4


def copy_blocks(gpu: Gpu, cache: Tensor, copies: Tensor, destination: Tensor | None = None) -> None:
    """Copy block copies[i][0] of the cache to copies[i][1], by default of the same, in every layer.

    The cache is T [num_layers, num_blocks, 2 * num_kv_heads, block_size, head_dim]; copies are
    int32 [m, 2] on the GPU. `destination` has its own number of blocks. To swap, one of the two is
    in pinned host memory, which the GPU reads or writes itself. No block may be both read and
    written; this is not checked.
    """
    destination = cache if destination is None else destination
    num_layers, num_blocks, *block_shape = cache.shape
    m = len(copies)
    block_bytes = cache.element_size() * prod(block_shape)
    if block_bytes % _ACCESS_BYTES or block_bytes >= 2**31:
        raise ValueError(
            f"a block must have a multiple of {_ACCESS_BYTES} bytes, not {block_bytes}"
        )
    block_vectors = block_bytes // _ACCESS_BYTES
    gpu.kernel("copy_blocks")(
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
