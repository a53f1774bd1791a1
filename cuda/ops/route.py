"""The experts that each token goes through: `kernels/moe/route.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu, KernelSpec

MAX_EXPERTS = 4096

VARIANTS = [{"NORMALIZED": normalized} for normalized in ("0", "1")]


def route(gpu: Gpu, scores: Tensor, ids: Tensor, shares: Tensor, *, normalized: bool) -> None:
    """Write the experts of the highest scores [n, experts] to ids, and what each counts to shares.

    scores and shares are fp32, ids int32; the latter two [n, chosen]. In a tie the lowest expert
    comes first. `normalized`: a token's shares add up to one.
    """
    n, experts = scores.shape
    chosen = ids.shape[1]
    if not 1 <= chosen <= experts <= MAX_EXPERTS:
        raise ValueError(f"{chosen} of {experts} experts; at most {MAX_EXPERTS} there may be")
    check_tensor("scores", scores, (n, experts), "float32", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("shares", shares, (n, chosen), "float32", gpu)
    if n == 0:
        return
    spec = KernelSpec("route", "pppii", {"NORMALIZED": str(int(normalized))})
    gpu.kernel(spec)(
        n,
        32,
        scores,
        ids,
        shares,
        experts,
        chosen,
        shared_bytes=4 * experts,
        num_bytes=scores.nbytes,
    )
