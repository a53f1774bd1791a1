"""Probabilities of rows of logits: `kernels/sampling/softmax.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

VARIANTS: list[dict[str, str]] = [{}]


def softmax_spec() -> KernelSpec:
    return KernelSpec("softmax", "ppi")


def softmax(gpu: Gpu, logits: Tensor, out: Tensor) -> None:
    """Write the softmax of each row of logits fp32 [n, vocab] to out, which is like them."""
    n, vocab = logits.shape
    check_tensor("logits", logits, (n, vocab), "float32", gpu)
    check_tensor("out", out, (n, vocab), "float32", gpu)
    if not vocab < 2**30:
        raise ValueError(f"vocab must be below 2^30, not {vocab}")
    if logits.numel() == 0:
        return
    gpu.kernel(softmax_spec())(n, 1024, logits, out, vocab, num_bytes=2 * logits.nbytes)
