"""Mixture of experts for a few tokens: routing and expert MLPs, `kernels/moe/`."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec

MAX_EXPERTS = 4096
_THREADS = 256  # 8 warps
_GATE_ROWS_PER_BLOCK, _DOWN_ROWS_PER_BLOCK = 16, 4


ACTIVATIONS = ("silu", "gelu_tanh", "gelu_sigmoid")
_ROUTE = KernelSpec(
    "route",
    "pointer logits, pointer bias, pointer correction, pointer ids, pointer weights, "
    "int num_experts, int experts_per_token, int sigmoid, int by_logits, int num_groups, "
    "int top_groups, int best_of_group, int normalized, float eps, float scale",
)


def _gate_up_spec(dtype: str, activation: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer addresses, pointer biases, pointer ids, pointer out, "
        "int hidden_size, int expert_size, int experts_per_token, int gate_step, float limit"
    )
    defines = {"DTYPE": dtype, "ACTIVATION": activation.upper()}
    return KernelSpec("expert_gate_up", arguments, defines)


def _down_spec(dtype: str) -> KernelSpec:
    arguments = (
        "pointer x, pointer addresses, pointer biases, pointer ids, pointer weights, "
        "pointer out, int hidden_size, int expert_size, int experts_per_token"
    )
    return KernelSpec("expert_down", arguments, {"DTYPE": dtype})


VARIANTS = [
    _ROUTE,
    *(
        _gate_up_spec(dtype, activation)
        for dtype in DTYPE_NAMES.values()
        for activation in ACTIVATIONS
    ),
    *(_down_spec(dtype) for dtype in DTYPE_NAMES.values()),
]


@dataclass(frozen=True)
class Routing:
    """How `route` converts a token's logits to the ids and weights of its experts.

    Scores are the softmax over all experts, or with `sigmoid` that of each. With `num_groups` > 1
    only the `top_groups` groups with the largest sums of their `best_of_group` (1 or 2) best scores
    are candidates. With `by_logits` the logits decide. With `normalized` the weights are divided by
    their sum plus `eps`. They are multiplied by `scale`.
    """

    sigmoid: bool = False
    by_logits: bool = False
    num_groups: int = 1
    top_groups: int = 1
    best_of_group: int = 2
    normalized: bool = False
    eps: float = 0.0
    scale: float = 1.0


def route(
    gpu: Gpu,
    logits: Tensor,
    ids: Tensor,
    weights: Tensor,
    routing: Routing,
    *,
    bias: Tensor | None = None,
    correction: Tensor | None = None,
) -> None:
    """Write each token's best experts, given logits [n, num_experts], and their routing weights.

    Floats are fp32, `ids` int32; ids and weights are [n, experts_per_token]. `bias` [num_experts]
    is added to the logits, `correction` [num_experts] to the scores for the choice only. Of equal
    scores the lowest expert comes first.
    """
    (n, num_experts), groups = logits.shape, routing.num_groups
    chosen = ids.shape[1]
    if not 1 <= chosen <= num_experts <= MAX_EXPERTS:
        raise ValueError(f"{chosen} of {num_experts} experts; at most {MAX_EXPERTS} experts")
    if groups < 1 or num_experts % groups or not 1 <= routing.top_groups <= groups:
        raise ValueError(f"{routing.top_groups} of {groups} groups of {num_experts} experts")
    if routing.best_of_group not in (1, 2):
        raise ValueError(f"best_of_group must be 1 or 2, not {routing.best_of_group}")
    check_tensor("logits", logits, (n, num_experts), "float32", gpu)
    check_tensor("bias", bias, (num_experts,), "float32", gpu)
    check_tensor("correction", correction, (num_experts,), "float32", gpu)
    check_tensor("ids", ids, (n, chosen), "int32", gpu)
    check_tensor("weights", weights, (n, chosen), "float32", gpu)
    if n == 0:
        return
    gpu.kernel(_ROUTE)(
        n,
        32,
        shared_bytes=4 * (2 * num_experts + groups),
        num_bytes=logits.nbytes,
        logits=logits,
        bias=bias,
        correction=correction,
        ids=ids,
        weights=weights,
        num_experts=num_experts,
        experts_per_token=chosen,
        sigmoid=int(routing.sigmoid),
        by_logits=int(routing.by_logits),
        num_groups=groups,
        top_groups=routing.top_groups,
        best_of_group=routing.best_of_group,
        normalized=int(routing.normalized),
        eps=routing.eps,
        scale=routing.scale,
    )


def expert_gate_up_fits(gpu: Gpu, hidden_size: int, itemsize: int) -> bool:
    """Return whether two rows of x fit a block's shared memory and are multiples of 16 bytes."""
    row_bytes = hidden_size * itemsize
    return row_bytes % 16 == 0 and 2 * row_bytes <= gpu.block_shared_bytes


def expert_gate_up(
    gpu: Gpu,
    x: Tensor,
    addresses: Tensor,
    ids: Tensor,
    out: Tensor,
    activation: str,
    *,
    biases: Tensor | None = None,
    gate_step: int = 1,
    limit: float = 0.0,
) -> None:
    """Write activation(gate · x) * (up · x) of each token's experts to `out`.

    `out` is T [n, experts_per_token, expert_size], x T [n, hidden_size]. `addresses` int64
    [num_experts] are those of each expert's contiguous matrix T [2 * expert_size, hidden_size],
    `biases` those of T [2 * expert_size]; `ids` int32 [n, experts_per_token] must be valid. None of
    them is checked. The gate's rows come first, or with a `gate_step` of 2 gate and up rows
    alternate. With a `limit` > 0, gate is at most that, up is clamped to ±limit, and 1 is added.
    """
    (n, hidden_size), (_, chosen, expert_size) = x.shape, out.shape
    if not expert_gate_up_fits(gpu, hidden_size, x.itemsize):
        raise ValueError(f"the kernel does not take rows of {hidden_size} elements")
    check_tensor("x", x, (n, hidden_size), x.dtype, gpu)
    check_tensor("out", out, (n, chosen, expert_size), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("biases", biases, (len(addresses),), "int64", gpu)
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
        biases=biases,
        ids=ids,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
        gate_step=gate_step,
        limit=limit,
    )


def expert_down_fits(gpu: Gpu, expert_size: int, experts_per_token: int, itemsize: int) -> bool:
    """Return whether the rows of a token's experts fit a block's shared memory."""
    row_bytes = expert_size * itemsize
    shared_bytes = experts_per_token * row_bytes + 1024
    return row_bytes % 16 == 0 and shared_bytes <= gpu.block_shared_bytes


def expert_down(
    gpu: Gpu,
    x: Tensor,
    addresses: Tensor,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    biases: Tensor | None = None,
) -> None:
    """Write the sum over a token's experts of weight * (matrix · x + bias) to `out`.

    `out` is fp32 [n, hidden_size], x T [n, experts_per_token, expert_size]. `addresses` int64
    [num_experts] are those of each expert's contiguous matrix T [hidden_size, expert_size],
    `biases` those of T [hidden_size]; `ids` int32 [n, experts_per_token] must be valid. None of
    them is checked. The routing weights are fp32
    [n, experts_per_token].
    """
    (n, chosen, expert_size), hidden_size = x.shape, out.shape[1]
    if not expert_down_fits(gpu, expert_size, chosen, x.itemsize):
        raise ValueError(f"the kernel does not take {chosen} rows of {expert_size} elements")
    check_tensor("x", x, (n, chosen, expert_size), x.dtype, gpu)
    check_tensor("addresses", addresses, (len(addresses),), "int64", gpu)
    check_tensor("biases", biases, (len(addresses),), "int64", gpu)
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
        biases=biases,
        ids=ids,
        weights=weights,
        out=out,
        hidden_size=hidden_size,
        expert_size=expert_size,
        experts_per_token=chosen,
    )
