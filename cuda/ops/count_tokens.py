"""Which ids a sequence has, for the penalties: `kernels/sampling/count_tokens.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

VARIANTS: list[dict[str, str]] = [{}]


def count_tokens_spec() -> KernelSpec:
    return KernelSpec("count_tokens", "pppiiii")


def count_tokens(
    gpu: Gpu, ids: Tensor, counts: Tensor, *, generated: bool, rows: Tensor | None = None
) -> None:
    """Note in counts int32 [max_rows, vocab] that these ids occur, and count generated ones.

    ids int32 [n], each in the row that `rows` int32 [n] names (None: id i in row i). Ids and
    rows outside the counts are passed over. A sequence's row starts as zeros.
    """
    n = ids.shape[0]
    max_rows, vocab = counts.shape
    check_tensor("ids", ids, (n,), "int32", gpu)
    check_tensor("rows", rows, (n,), "int32", gpu)
    check_tensor("counts", counts, (max_rows, vocab), "int32", gpu)
    if max(n, max_rows, vocab) >= 2**31 - 256:
        raise ValueError(f"{n} ids and counts {list(counts.shape)} are too many for int32")
    if n == 0:
        return
    gpu.kernel(count_tokens_spec())(
        -(-n // 256),
        256,
        ids,
        rows,
        counts,
        n,
        max_rows,
        vocab,
        int(generated),
        num_bytes=n * 12,
    )
