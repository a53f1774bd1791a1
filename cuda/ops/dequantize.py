"""A packed matrix as a plain one: `kernels/linear/dequantize.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.packed_layout import GROUPS
from swiftchat.cuda.packed_matrix import PackedMatrix

_THREADS = 256
_BLOCKS_PER_SM = 16

_FORMS = [("INT8", 0), ("FP8", 0), *((form, g) for form in GROUPS for g in GROUPS[form])]
VARIANTS = [
    {"DTYPE": name, "FORM": form, "GROUP": str(group)}
    for form, group in _FORMS
    for name in DTYPE_NAMES.values()
]


def dequantize(gpu: Gpu, matrix: PackedMatrix, out: Tensor) -> None:
    """Write the matrix to out [rows, k] of its dtype; each weight is rounded once."""
    matrix.check(gpu)
    check_tensor("out", out, matrix.shape, matrix.dtype, gpu)
    rows, k = matrix.shape
    defines = {
        "DTYPE": DTYPE_NAMES[matrix.dtype],
        "FORM": matrix.form,
        "GROUP": str(matrix.group),
    }
    kernel = gpu.kernel(KernelSpec("dequantize", "pppii", defines))
    if rows:
        kernel(
            min(len(matrix.codes), _BLOCKS_PER_SM * gpu.num_sms),
            _THREADS,
            matrix.codes,
            matrix.row_scale,
            out,
            rows,
            k,
            num_bytes=matrix.nbytes + out.nbytes,
        )
