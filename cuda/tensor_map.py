"""How the copy engine of sm_90 and newer sees a tensor."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu, check, cuda_driver

__all__ = ["tensor_map"]

_WIDTH_BYTES = 128  # of a box, as wide as the swizzle


def tensor_map(gpu: Gpu, rows: Tensor, box_rows: int) -> Any:
    """A kernel's argument: contiguous `rows` [num_rows, row_size], in boxes of 128 bytes a row.

    In shared memory a box of `box_rows` rows has the 128-byte swizzle: the eight 16-byte chunks
    of its row r are permuted by exclusive or with r % 8. What lies outside the tensor is filled
    with zeros. A row has a multiple of 16 bytes. Before sm_90 the argument is empty.
    """
    if not gpu.has_copy_engine:
        return cuda_driver().CUtensorMap()
    return _encoded(rows.data_ptr(), *rows.shape, rows.element_size(), box_rows)


@lru_cache(maxsize=1024)  # one for each layer's cache, and the tests'
def _encoded(pointer: int, num_rows: int, row_size: int, item_bytes: int, box_rows: int) -> Any:
    cuda = cuda_driver()
    kinds = cuda.CUtensorMapDataType
    kind = {
        1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    }[item_bytes]
    return check(
        cuda.cuTensorMapEncodeTiled(
            kind,
            2,
            pointer,
            [cuda.cuuint64_t(row_size), cuda.cuuint64_t(num_rows)],
            [cuda.cuuint64_t(row_size * item_bytes)],
            [cuda.cuuint32_t(_WIDTH_BYTES // item_bytes), cuda.cuuint32_t(box_rows)],
            [cuda.cuuint32_t(1), cuda.cuuint32_t(1)],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
