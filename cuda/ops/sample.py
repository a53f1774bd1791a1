"""Each row's next token, drawn on the GPU: `kernels/sampling/sample.cu`."""

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

# As in `kernels/sampling/sample_row.cuh`.
_CHUNK, _SEGMENT, _BINS = 4096, 512, 512
_MAX_GRID = 65_535
_MAX_VOCAB = 2**20 - 1

VARIANTS: list[dict[str, str]] = [{}]


def sample_spec() -> KernelSpec:
    return KernelSpec("sample", "pppppppppppli")


def sample_workspace(gpu: Gpu, max_rows: int, vocab: int) -> Tensor:
    """What `sample` of up to `max_rows` rows needs; every call leaves it ready for the next."""
    size = _workspace_size(vocab)
    return torch.zeros(max_rows, size, dtype=torch.int64, device=gpu.device)


def sample(
    gpu: Gpu,
    logits: Tensor,
    values: Tensor,
    ids: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    out: Tensor,
    workspace: Tensor,
) -> None:
    """Write each row's next token to out int32 [n]: -1 where ids has -1, ids at temperature 0.

    logits fp32 [n, vocab] with penalties applied; values fp32 [n] and ids int32 [n] from
    `argmax`. temperature, top_p (1: off) and min_p (0: off) fp32 [n]; top_k int32 [n] (0: off).
    Draws are a function of seeds int64 [n], taken as unsigned, and positions int32 [n].
    """
    n, vocab = logits.shape
    check_tensor("logits", logits, (n, vocab), "float32", gpu)
    for name, tensor, dtype in (
        ("values", values, "float32"),
        ("ids", ids, "int32"),
        ("temperature", temperature, "float32"),
        ("top_k", top_k, "int32"),
        ("top_p", top_p, "float32"),
        ("min_p", min_p, "float32"),
        ("seeds", seeds, "int64"),
        ("positions", positions, "int32"),
        ("out", out, "int32"),
    ):
        check_tensor(name, tensor, (n,), dtype, gpu)
    if not 0 < vocab <= _MAX_VOCAB:
        raise ValueError(f"vocab must be between 1 and {_MAX_VOCAB}, not {vocab}")
    max_rows, size = workspace.shape[0], _workspace_size(vocab)
    check_tensor("workspace", workspace, (max_rows, size), "int64", gpu)
    if n > min(max_rows, _MAX_GRID):
        raise ValueError(f"{n} rows with a workspace for {max_rows}")
    if n == 0:
        return
    gpu.kernel(sample_spec())(
        (_num_chunks(vocab), n),
        512,
        logits,
        values,
        ids,
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        out,
        workspace,
        size,
        vocab,
        num_bytes=logits.nbytes,
    )


def _num_chunks(vocab: int) -> int:
    return -(-vocab // _CHUNK)


def _workspace_size(vocab: int) -> int:
    """64-bit numbers a row: a counter, a histogram, and each chunk's sums and candidates."""
    return 1 + 2 * _BINS + _num_chunks(vocab) * (3 + 2 * _SEGMENT)
