"""The end of a decode step, on the device: `kernels/sampling/advance.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_THREADS = 128
VARIANTS: list[dict[str, str]] = [{}]


def advance_spec() -> KernelSpec:
    return KernelSpec("advance", "pppppppppiiiiii")


def advance(
    gpu: Gpu,
    sampled: Tensor,
    tokens: Tensor,
    positions: Tensor,
    context_lens: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    counts: Tensor,
    ring: Tensor,
    step: Tensor,
    block_size: int,
) -> None:
    """Make the sampled ids [n] the tokens of the next step, and tell them to the host.

    All int32 [n] and on the GPU, `block_tables` [n, max_blocks] and `counts` [n, vocab] too;
    `step` is int64 [1], `ring` int32 [rows, lanes] in pinned host memory. Everything but
    `sampled` and `block_tables` is modified in place.
    """
    n = len(sampled)
    if n > _THREADS:
        raise ValueError(f"at most {_THREADS} lanes, not {n}")
    for name, tensor in (
        ("sampled", sampled),
        ("tokens", tokens),
        ("positions", positions),
        ("context_lens", context_lens),
        ("slots", slots),
    ):
        check_tensor(name, tensor, (n,), "int32", gpu)
    max_blocks, vocab = block_tables.shape[1], counts.shape[1]
    check_tensor("block_tables", block_tables, (n, max_blocks), "int32", gpu)
    check_tensor("counts", counts, (n, vocab), "int32", gpu)
    check_tensor("step", step, (1,), "int64", gpu)
    if not ring.is_pinned() or ring.shape[1] < n:
        raise ValueError("ring must be pinned, with a column for each lane")
    gpu.kernel(advance_spec())(
        1,
        _THREADS,
        sampled,
        tokens,
        positions,
        context_lens,
        slots,
        block_tables,
        counts,
        ring,
        step,
        n,
        max_blocks,
        block_size.bit_length() - 1,
        vocab,
        *ring.shape,
    )
