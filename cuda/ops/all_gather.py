"""The ranks' columns of the logits joined: `kernels/comm/all_gather.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec
from swiftchat.cuda.peer_memory import PeerBuffer

_THREADS = 128
_SPEC = KernelSpec("all_gather", "pplii")

VARIANTS: list[dict[str, str]] = [{}]


def all_gather(gpu: Gpu, out: Tensor, inbox: PeerBuffer, width: int) -> None:
    """Write to out, fp32 [n, columns], what `linear_send` of every rank sent to this inbox.

    Each rank sent [n, width], the last one the rest of the columns.
    """
    n, columns = out.shape
    if width % 4 or columns % 4:
        raise ValueError(f"parts of {width} of {columns} columns are no multiples of 4")
    if not (inbox.world - 1) * width < columns <= inbox.world * width:
        raise ValueError(f"{inbox.world} parts of {width} do not make {columns} columns")
    check_tensor("out", out, (n, columns), "float32", gpu)
    inbox.check_part(n * width, gpu)
    if n == 0:
        return
    gpu.kernel(_SPEC)(
        (-(-width // (4 * _THREADS)), inbox.world, n),
        _THREADS,
        inbox.own,
        out,
        inbox.own.stride(0),
        width,
        columns,
        num_bytes=3 * out.nbytes,
    )
