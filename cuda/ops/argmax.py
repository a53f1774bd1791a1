"""Each row's largest logit and its id: `kernels/sampling/argmax.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_PER_BLOCK = 256 * 8
_MAX_GRID = 65_535

VARIANTS: list[dict[str, str]] = [{}]


def argmax_spec() -> KernelSpec:
    return KernelSpec("argmax", "ppppi")


def argmax_workspace(gpu: Gpu, max_rows: int) -> Tensor:
    """What `argmax` of up to `max_rows` rows needs; every call leaves it as it found it."""
    return torch.zeros(max_rows, 2, dtype=torch.int64, device=gpu.device)


def argmax(gpu: Gpu, logits: Tensor, values: Tensor, ids: Tensor, workspace: Tensor) -> None:
    """Write the maximum of each row of logits fp32 [n, vocab], and the lowest id that has it.

    values fp32 [n]; ids int32 [n]. A row with a NaN or an infinite logit gets NaN and -1.
    """
    n, vocab = logits.shape
    check_tensor("logits", logits, (n, vocab), "float32", gpu)
    check_tensor("values", values, (n,), "float32", gpu)
    check_tensor("ids", ids, (n,), "int32", gpu)
    max_rows = workspace.shape[0]
    check_tensor("workspace", workspace, (max_rows, 2), "int64", gpu)
    if n > min(max_rows, _MAX_GRID) or not 0 < vocab < 2**30:
        raise ValueError(f"{n} rows of {vocab} logits with a workspace for {max_rows}")
    if n == 0:
        return
    grid = (-(-vocab // _PER_BLOCK), n)
    gpu.kernel(argmax_spec())(
        grid, 256, logits, values, ids, workspace, vocab, num_bytes=logits.nbytes
    )
