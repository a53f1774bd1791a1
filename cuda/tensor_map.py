"""Tensor maps: tensors as the tensor memory accelerator (TMA) of sm_90 and newer reads them."""

from functools import cache, lru_cache
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu, check, cuda_driver

_SWIZZLE_BYTES = 128  # the width of the swizzle


def tensor_map(gpu: Gpu, rows: Tensor, box_rows: int, box_bytes: int = _SWIZZLE_BYTES) -> Any:
    """Return a tensor map of contiguous `rows` [..., row_size], in boxes of `box_rows` rows.

    A box has `box_bytes` of each row, up to 256 elements. In shared memory a box of 128 bytes has
    the 128-byte swizzle: the eight 16-byte chunks of its row r are permuted by exclusive or with
    r % 8. Wider boxes are as in memory. Elements outside the tensor are read as zeros. A row must
    be a multiple of 16 bytes. Before sm_90 the map is empty.
    """
    if not gpu.has_copy_engine:
        return empty_map()
    row_size = rows.shape[-1]
    num_rows = rows.numel() // row_size
    item_bytes = rows.element_size()
    sizes, strides, box = (row_size, num_rows), (row_size * item_bytes,), (box_bytes, box_rows)
    return _encode(rows.data_ptr(), sizes, strides, item_bytes, box)


@cache
def empty_map() -> Any:
    """Return a map for kernels that do not use theirs."""
    return cuda_driver().CUtensorMap()


def heads_map(gpu: Gpu, heads: Tensor, box_rows: int) -> Any:
    """Return a tensor map of `heads` [num_rows, num_heads, head_dim], in boxes of one head.

    Boxes are those of `tensor_map` with 128 bytes of a row. Rows may be apart, by a multiple of 16
    bytes.
    """
    if not gpu.has_copy_engine:
        return empty_map()
    num_rows, num_heads, head_dim = heads.shape
    item_bytes = heads.element_size()
    strides = (head_dim * item_bytes, heads.stride(0) * item_bytes)
    sizes = (head_dim, num_heads, num_rows)
    box = (_SWIZZLE_BYTES, 1, box_rows)
    return _encode(heads.data_ptr(), sizes, strides, item_bytes, box)


@lru_cache(maxsize=4096)  # an entry for each matrix and each layer's cache
def _encode(
    pointer: int,
    sizes: tuple[int, ...],
    strides_bytes: tuple[int, ...],
    item_bytes: int,
    box: tuple[int, ...],
) -> Any:
    """Encode a map of `sizes`, columns first; a `box` has bytes of a row, then the other sizes."""
    box_bytes, *box_rows = box
    cuda = cuda_driver()
    kinds = cuda.CUtensorMapDataType
    kind = {
        1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT32,
        8: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT64,
    }[item_bytes]
    swizzles = cuda.CUtensorMapSwizzle
    return check(
        cuda.cuTensorMapEncodeTiled(
            kind,
            len(sizes),
            pointer,
            [cuda.cuuint64_t(size) for size in sizes],
            [cuda.cuuint64_t(stride) for stride in strides_bytes],
            [cuda.cuuint32_t(size) for size in (box_bytes // item_bytes, *box_rows)],
            [cuda.cuuint32_t(1)] * len(sizes),
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzles.CU_TENSOR_MAP_SWIZZLE_128B
            if box_bytes == _SWIZZLE_BYTES
            else swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
