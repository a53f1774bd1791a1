"""Tensor maps: 2-D tensors as the tensor memory accelerator (TMA) of sm_90 and newer reads them."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu, check, cuda_driver

_SWIZZLE_BYTES = 128  # the width of the swizzle


def tensor_map(gpu: Gpu, rows: Tensor, box_rows: int, box_bytes: int = _SWIZZLE_BYTES) -> Any:
    """Return a tensor map of contiguous `rows` [num_rows, row_size], in boxes of `box_rows` rows.

    A box has `box_bytes` of each row, up to 256 elements. In shared memory a box of 128 bytes has
    the 128-byte swizzle: the eight 16-byte chunks of its row r are permuted by exclusive or with
    r % 8. Wider boxes are as in memory. Elements outside the tensor are read as zeros. A row must
    be a multiple of 16 bytes. Before sm_90 the map is empty.
    """
    if not gpu.has_copy_engine:
        return cuda_driver().CUtensorMap()
    return _encode(rows.data_ptr(), *rows.shape, rows.element_size(), box_rows, box_bytes)


@lru_cache(maxsize=4096)  # an entry for each matrix and each layer's cache
def _encode(
    pointer: int, num_rows: int, row_size: int, item_bytes: int, box_rows: int, box_bytes: int
) -> Any:
    cuda = cuda_driver()
    kinds = cuda.CUtensorMapDataType
    kind = {
        1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    }[item_bytes]
    swizzles = cuda.CUtensorMapSwizzle
    return check(
        cuda.cuTensorMapEncodeTiled(
            kind,
            2,
            pointer,
            [cuda.cuuint64_t(row_size), cuda.cuuint64_t(num_rows)],
            [cuda.cuuint64_t(row_size * item_bytes)],
            [cuda.cuuint32_t(box_bytes // item_bytes), cuda.cuuint32_t(box_rows)],
            [cuda.cuuint32_t(1), cuda.cuuint32_t(1)],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzles.CU_TENSOR_MAP_SWIZZLE_128B
            if box_bytes == _SWIZZLE_BYTES
            else swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
