"""Repetition, presence and frequency penalties: `kernels/sampling/penalties.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

_PER_BLOCK = 256 * 8
_MAX_GRID = 65_535

VARIANTS: list[dict[str, str]] = [{}]


def penalties_spec() -> KernelSpec:
    return KernelSpec("penalties", "pppppi")


def penalties(
    gpu: Gpu,
    logits: Tensor,
    counts: Tensor,
    repeat_penalty: Tensor,
    presence_penalty: Tensor,
    frequency_penalty: Tensor,
) -> None:
    """Apply the penalties to logits fp32 [n, vocab] in place.

    counts int32 [max_rows, vocab], row i for logits' row i, as `count_tokens` keeps them. The
    penalties are fp32 [n]; a row where they are 1, 0 and 0 is left alone and its counts unread.
    """
    n, vocab = logits.shape
    check_tensor("logits", logits, (n, vocab), "float32", gpu)
    check_tensor("counts", counts, (counts.shape[0], vocab), "int32", gpu)
    check_tensor("repeat_penalty", repeat_penalty, (n,), "float32", gpu)
    check_tensor("presence_penalty", presence_penalty, (n,), "float32", gpu)
    check_tensor("frequency_penalty", frequency_penalty, (n,), "float32", gpu)
    if n > min(counts.shape[0], _MAX_GRID) or vocab >= 2**30:
        raise ValueError(f"{n} rows of {vocab} logits with counts for {counts.shape[0]}")
    if logits.numel() == 0:
        return
    grid = (-(-vocab // _PER_BLOCK), n)
    gpu.kernel(penalties_spec())(
        grid,
        256,
        logits,
        counts,
        repeat_penalty,
        presence_penalty,
        frequency_penalty,
        vocab,
        num_bytes=logits.nbytes,
    )
