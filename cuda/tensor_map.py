"""Tensor maps: 2-D tensors as the tensor memory accelerator (TMA) of sm_90 and newer reads them."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from swiftchat.cuda.gpu import Gpu, check, cuda_driver

_BOX_BYTES = 128  # of a row in a box: the width of the swizzle


def tensor_map(gpu: Gpu, rows: Tensor, box_rows: int) -> Any:
    """Return a tensor map of contiguous `rows` [num_rows, row_size], in boxes of `box_rows` rows.

    A box has 128 bytes of each row. In shared memory it has the 128-byte swizzle: the eight
    16-byte chunks of its row r are permuted by exclusive or with r % 8. Elements outside the
    tensor are read as zeros. A row must be a multiple of 16 bytes. Before sm_90 the map is empty.
    """
    if not gpu.has_copy_engine:
        return cuda_driver().CUtensorMap()
    return _encode(rows.data_ptr(), *rows.shape, rows.element_size(), box_rows)


@lru_cache(maxsize=1024)  # one entry for each layer's cache
def _encode(pointer: int, num_rows: int, row_size: int, item_bytes: int, box_rows: int) -> Any:
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
            [cuda.cuuint32_t(_BOX_BYTES // item_bytes), cuda.cuuint32_t(box_rows)],
            [cuda.cuuint32_t(1), cuda.cuuint32_t(1)],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
