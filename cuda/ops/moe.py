"""Mixture of experts for a few tokens: routing and expert MLPs, `kernels/moe/`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

MAX_EXPERTS = 4096
_THREADS = 256  # 8 warps
_GATE_ROWS_PER_BLOCK, _DOWN_ROWS_PER_BLOCK = 16, 4


def _route_spec(renormalize: bool) -> KernelSpec:
    arguments = (
        "pointer scores, pointer ids, pointer weights, int num_experts, int experts_per_token"
    )
    return KernelSpec("route", arguments, {"RENORMALIZE": str(int(renormalize))})


def _gate_up_spec(dtype: str, activation: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer addresses, pointer ids, pointer out, int hidden_size, "
        "int expert_size, int experts_per_token"
    )
    defines = {"DTYPE": dtype, "ACTIVATION": activation.upper()}
    return KernelSpec("expert_gate_up", arguments, defines)


def _down_spec(dtype: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer addresses, pointer ids, pointer weights, pointer out, "
        "int hidden_size, int expert_size, int experts_per_token"
    )
    return KernelSpec("expert_down", arguments, {"DTYPE": dtype})


VARIANTS = [
    *(_route_spec(renormalize) for renormalize in (False, True)),
    *(
        _gate_up_spec(dtype, activation)
        for dtype in DTYPE_NAMES.values()
        for activation in ("silu", "gelu_tanh")
    ),
    *(_down_spec(dtype) for dtype in DTYPE_NAMES.values()),
]


def route(gpu: Gpu, scores: Tensor, ids: Tensor, weights: Tensor, *, renormalize: bool) -> None:
    """Write the experts with the highest scores [n, num_experts] and their routing weights.

    scores and weights are fp32, ids int32; ids and weights are [n, experts_per_token]. Of equal
    scores the lowest expert comes first. With `renormalize`, a token's weights sum to one.
    """
    n, num_experts = scores.shape
    chosen = ids.shape[1]
    if not 1 <= chosen <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{chosen} of {num_experts} experts; at most {MAX_EXPERTS} experts")
    check_tensor("scores", scores, (n, num_experts), "float32", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("weights", weights, (n, chosen), "float32", gpu)
    if n == 0:
        return
    gpu.kernel(_route_spec(renormalize))(
        n,
        32,
        shared_bytes=4 * num_experts,
        num_bytes=scores.nbytes,
        scores=scores,
        ids=ids,
        weights=weights,
        num_experts=num_experts,
        experts_per_token=chosen,
    )


def expert_gate_up_fits(gpu: Gpu, hidden_size: int, itemsize: int) -> bool:
    """Return whether two rows of x fit a block's shared memory and are multiples of 16 bytes."""
    row_bytes = hidden_size * itemsize
    return row_bytes % 16 == 0 and 2 * row_bytes <= gpu.block_shared_bytes


def expert_gate_up(
    gpu: Gpu, x: Tensor, addresses: Tensor, ids: Tensor, out: Tensor, activation: str
) -> None:
    """Write activation(gate · x) * (up · x) of each token's experts to `out`.

    `out` is T [n, experts_per_token, expert_size], x T [n, hidden_size]. `addresses` int64
    [num_experts] are those of each expert's contiguous matrix T [2 * expert_size, hidden_size],
    the gate's rows first; `ids` int32 [n, experts_per_token] must be valid. Neither is checked.
    """
    (n, hidden_size), (_, chosen, expert_size) = x.shape, out.shape
    if not expert_gate_up_fits(gpu, hidden_size, x.itemsize):
        raise ValueError(f"the kernel does not take rows of {hidden_size} elements")
    check_tensor("x", x, (n, hidden_size), x.dtype, gpu)
    check_tensor("out", out, (n, chosen, expert_size), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    if n == 0:
        return
    gpu.kernel(_gate_up_spec(DTYPE_NAMES[x.dtype], activation))(
        (-(-expert_size // _GATE_ROWS_PER_BLOCK), n * chosen),
        _THREADS,
        shared_bytes=hidden_size * x.itemsize,
        num_bytes=2 * hidden_size * out.nbytes,
        x=x,
        addresses=addresses,
        ids=ids,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
    )


def expert_down_fits(gpu: Gpu, expert_size: int, experts_per_token: int, itemsize: int) -> bool:
    """Return whether the rows of a token's experts fit a block's shared memory."""
    row_bytes = expert_size * itemsize
    shared_bytes = experts_per_token * row_bytes + 1024
    return row_bytes % 16 == 0 and shared_bytes <= gpu.block_shared_bytes


def expert_down(
    gpu: Gpu, x: Tensor, addresses: Tensor, ids: Tensor, weights: Tensor, out: Tensor
) -> None:
    """Write the sum over a token's experts of weight * (matrix · x) to `out`.

    `out` is fp32 [n, hidden_size], x T [n, experts_per_token, expert_size]. `addresses` int64
    [num_experts] are those of each expert's contiguous matrix T [hidden_size, expert_size]; `ids`
    int32 [n, experts_per_token] must be valid. Neither is checked. The routing weights are fp32
    [n, experts_per_token].
    """
    (n, chosen, expert_size), hidden_size = x.shape, out.shape[1]
    if not expert_down_fits(gpu, expert_size, chosen, x.itemsize):
        raise ValueError(f"the kernel does not take {chosen} rows of {expert_size} elements")
    check_tensor("x", x, (n, chosen, expert_size), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("weights", weights, (n, chosen), "float32", gpu)
    check_tensor("out", out, (n, hidden_size), "float32", gpu)
    if n == 0:
        return
    gpu.kernel(_down_spec(DTYPE_NAMES[x.dtype]))(
        (-(-hidden_size // _DOWN_ROWS_PER_BLOCK), n),
        _THREADS,
        shared_bytes=chosen * expert_size * x.itemsize,
        num_bytes=hidden_size * x.nbytes,
        x=x,
        addresses=addresses,
        ids=ids,
        weights=weights,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
    )
