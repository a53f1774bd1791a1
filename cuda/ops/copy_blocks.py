"""Copy KV blocks on the GPU and to or from host memory: `kernels/attention/copy_blocks.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_ACCESS = 16  # bytes
_PER_BLOCK = 256 * 4  # accesses
_MAX_GRID = 65_535

VARIANTS: list[dict[str, str]] = [{}]


def copy_blocks_spec() -> KernelSpec:
    return KernelSpec("copy_blocks", "ppplli")


def copy_blocks(gpu: Gpu, cache: Tensor, copies: Tensor) -> None:
    """Copy block copies[i][0] to copies[i][1] in every layer.

    The cache is T [num_layers, num_blocks, 2 * num_kv_heads, block_size, head_dim]; copies are
    int32 [m, 2] on the GPU, no block both read and written (that is not checked).
    """
    check_tensor("cache", cache, tuple(cache.shape), cache.dtype, gpu)
    _copy(gpu, cache, cache, copies)


def swap_blocks(gpu: Gpu, source: Tensor, destination: Tensor, copies: Tensor) -> None:
    """Copy block copies[i][0] of `source` to copies[i][1] of `destination` in every layer.

    One of the two is a cache as in `copy_blocks`, the other a pinned tensor of the host, which
    differs in its number of blocks alone. The host sees the result when the stream has come so far.
    """
    if source.is_cuda == destination.is_cuda:
        raise ValueError("one of source and destination must be on the GPU, one on the host")
    if destination.shape[0] != source.shape[0] or destination.shape[2:] != source.shape[2:]:
        raise ValueError(
            f"source and destination may differ in blocks only, "
            f"not {list(source.shape)} and {list(destination.shape)}"
        )
    cache, host = (source, destination) if source.is_cuda else (destination, source)
    check_tensor("cache", cache, tuple(cache.shape), cache.dtype, gpu)
    if host.dtype != cache.dtype or not host.is_contiguous() or not host.is_pinned():
        raise ValueError(f"the host's blocks must be pinned, contiguous and {cache.dtype}")
    if host.data_ptr() % _ACCESS:
        raise ValueError(f"the host's blocks must be aligned to {_ACCESS} bytes")
    _copy(gpu, source, destination, copies)


def _copy(gpu: Gpu, source: Tensor, destination: Tensor, copies: Tensor) -> None:
    layers, source_blocks, *block_shape = source.shape
    m = copies.shape[0]
    check_tensor("copies", copies, (m, 2), "int32", gpu)
    block_bytes = source.element_size()
    for size in block_shape:
        block_bytes *= size
    if block_bytes % _ACCESS or block_bytes >= 2**31:
        raise ValueError(f"a block must have a multiple of {_ACCESS} bytes, not {block_bytes}")
    if max(m, layers) > _MAX_GRID:
        raise ValueError(f"at most {_MAX_GRID} copies and layers, not {m} and {layers}")
    if m == 0 or source.numel() == 0:
        return
    block = block_bytes // _ACCESS
    gpu.kernel(copy_blocks_spec())(
        (-(-block // _PER_BLOCK), m, layers),
        256,
        source,
        destination,
        copies,
        source_blocks * block,
        destination.shape[1] * block,
        block,
        num_bytes=2 * m * layers * block_bytes,
    )
