"""Random experts and choices of many tokens, for tests of grouped GEMMs."""

from dataclasses import replace

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.ops.moe.grouped_experts import ExpertOrder, expert_order
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs
from tests.support.kernels.experts import addresses
from tests.support.kernels.packed_matrices import packed

# Tokens, experts, experts of a token, hidden size, expert size: small and large tiles, experts
# without a token, partial tiles of rows and columns, and sums that end within a tile.
SIZES = [
    (1, 8, 2, 64, 32),
    (37, 32, 4, 96, 160),
    (300, 4, 2, 288, 192),
    (257, 3, 1, 2880, 96),
    (150, 40, 6, 160, 352),
    (700, 8, 4, 128, 64),
    (500, 6, 2, 384, 256),
    (40, 9, 3, 256, 128),
    (3, 70, 8, 64, 64),
    (60, 8, 4, 96, 160),
]


_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


class RandomMatrices:
    """Matrices [num_experts, rows, columns] and biases, in fp64 and for the kernels.

    `kind` is a dtype or one of `PACKINGS`, whose activations are bf16, or with
    " float16" at the end fp16.
    """

    def __init__(self, kind: str, num_experts: int, rows: int, columns: int) -> None:
        name = kind.split()[0]
        is_plain = name in _DTYPES
        self.dtype = _DTYPES.get(kind.split()[-1], torch.bfloat16)
        make = Inputs(rows + columns, self.dtype)
        biases = make.normal(num_experts, rows)
        self._held: list[object] = [biases]
        self.biases = biases.double()
        self.tolerance = max(ROUNDING[self.dtype], 1e-5)
        scales: Tensor | None = None
        scheme, group_size = "PLAIN", 0
        if is_plain:
            tensor = make.normal(num_experts, rows, columns, scale=columns**-0.5)
            self.matrices, values = tensor.double(), addresses(tensor)
            self._held.append(tensor)
        else:
            scheme, group_size = PACKINGS[name]
            sizes = scheme, group_size, rows, columns
            each = [packed(make, *sizes, magnitude=columns**-0.5) for _ in range(num_experts)]
            exact = torch.stack([exact for _, exact in each])
            # A tensor core multiplies rounded weights, except where a row has one scale.
            self.matrices = exact.to(self.dtype).double() if group_size else exact
            values = addresses(matrix.tiles for matrix, _ in each)
            of_rows = [m.row_scale for m, _ in each if m.row_scale is not None]
            scales = addresses(of_rows) if of_rows else None
            self._held.append(each)
        self.plain = ExpertMatrices(scheme, rows, columns, values, scales, None, group_size)
        self.biased = replace(self.plain, biases=addresses(biases))


PACKINGS = {
    "int8": ("INT8", 0),
    "fp8": ("FP8", 0),
    "int8-32": ("INT8", 32),
    "fp8-32": ("FP8", 32),
    "fp8-64": ("FP8", 64),
    "int4-32": ("INT4", 32),
    "int4-64": ("INT4", 64),
    "int4-128": ("INT4", 128),
    "mxfp4": ("MXFP4", 32),
    "nvfp4": ("NVFP4", 16),
}
KINDS = (
    *("bfloat16", "float16", "float32"),
    *(*PACKINGS, "int4-32 float16", "int8 float16", "fp8-32 float16"),
    *("mxfp4 float16", "nvfp4 float16"),
)


# Kinds with the sizes that they can have.
CASES = [
    (kind, *size)
    for kind in KINDS
    for size in SIZES
    if all(columns % max(PACKINGS.get(kind.split()[0], ("", 0))[1], 1) == 0 for columns in size[3:])
]


def random_choices(seed: int, n: int, num_experts: int, chosen: int) -> Tensor:
    """Different experts for each token, int32 [n, chosen]; the first ones more often."""
    make = Inputs(seed)
    scores = make.normal(n, num_experts) - torch.arange(num_experts, device="cuda") * 0.05
    return scores.topk(chosen, 1).indices.int().contiguous()


def sorted_choices(gpu: Gpu, ids: Tensor, num_experts: int) -> tuple[ExpertOrder, Tensor, Tensor]:
    """Return the order of the kernel, and the choice and expert of each of its rows."""
    rows = expert_order(gpu, ids, num_experts)
    order = ids.flatten().long().argsort(stable=True)
    return rows, order, ids.flatten().long()[order]
