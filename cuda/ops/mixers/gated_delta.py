"""Decode steps of gated DeltaNet and Kimi Delta Attention: `kernels/mixers/gated_delta_step.cu`."""

from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.mixers.steps import MAX_TAPS, STATE_ARGUMENTS, StepSlots

_THREADS, _ROWS = 512, 8


def _spec(dtype: str, activation: str, key_decays: bool, chained: bool) -> KernelSpec:
    arguments = (
        "pointer projected, pointer key_steps, pointer output_gates, pointer conv, pointer decay, "
        f"pointer step_bias, pointer norm, {STATE_ARGUMENTS}int num_key_heads, int num_heads, "
        "int key_dim, int value_dim, int row_size, int taps, int slots_stride, int early_reads, "
        "float norm_eps"
    )
    defines = {"DTYPE": dtype, "ACTIVATION": activation.upper()}
    defines |= {"KEY_DECAYS": str(int(key_decays)), "CHAINED": str(int(chained))}
    return KernelSpec("gated_delta_step", arguments, defines)


VARIANTS = [
    _spec(dtype, kind, key_decays, chained)
    for dtype in DTYPE_NAMES.values()
    for kind in KINDS
    for key_decays in (False, True)
    for chained in (False, True)
]


def gated_delta_step_fits(key_dim: int, value_dim: int, taps: int) -> bool:
    """Return whether the kernel computes heads of these sizes."""
    return (
        taps <= MAX_TAPS
        and value_dim % 4 == 0
        and 2 * key_dim + value_dim <= _THREADS
        and key_dim <= _ROWS * (_THREADS // (value_dim // 4))
    )


def gated_delta_step(
    gpu: Gpu,
    projected: Tensor,
    out: Tensor,
    *,
    conv: Tensor,
    decay: Tensor,
    step_bias: Tensor,
    norm: Tensor,
    conv_states: Tensor,
    states: Tensor,
    rows: StepSlots,
    num_key_heads: int,
    activation: str,
    norm_eps: float,
    key_steps: Tensor | None = None,
    output_gates: Tensor | None = None,
) -> None:
    """Compute a token of gated DeltaNet for each row, from its projections to its gated output.

    `projected` T [n, …] has queries, keys, values, output gates, β and steps side by side, `out` is
    T [n, num_heads * value_dim]. `states` fp32 [num_slots, num_heads, key_dim, value_dim] and
    `conv_states` fp32 [num_slots, channels, taps - 1] are read and written by slot. `conv` is T
    [channels, taps]; `decay` and `step_bias` fp32 [num_heads] and `norm` fp32 [value_dim].

    With `key_steps` fp32 [n, num_heads * key_dim] each element of a key has a decay of its own, and
    `step_bias` as many elements; the output is multiplied by the sigmoid of `output_gates` fp32
    [n, num_heads * value_dim]. `projected` then has queries, keys, values, β and more.
    """
    num_slots, num_heads, key_dim, value_dim = states.shape
    (channels, taps), row_size = conv.shape, projected.shape[1]
    n, values = len(projected), num_heads * value_dim
    if not gated_delta_step_fits(key_dim, value_dim, taps) or num_heads % num_key_heads:
        raise ValueError(f"the kernel does not take heads of {key_dim} by {value_dim}, {taps} taps")
    if channels != 2 * num_key_heads * key_dim + values:
        raise ValueError(f"{channels} channels do not fit {num_key_heads} key heads")
    check_steps(gpu, projected, channels, values, key_steps, step_bias, states)
    check_tensor("out", out, (n, values), out.dtype, gpu)
    check_tensor("output_gates", output_gates, (n, values), "float32", gpu)
    if (key_steps is None) != (output_gates is None):
        raise ValueError("key_steps and output_gates come together")
    check_tensor("conv", conv, (channels, taps), out.dtype, gpu)
    check_tensor("decay", decay, (num_heads,), "float32", gpu)
    check_tensor("norm", norm, (value_dim,), "float32", gpu)
    check_tensor("conv_states", conv_states, (num_slots, channels, taps - 1), "float32", gpu)
    check_tensor("states", states, (num_slots, num_heads, key_dim, value_dim), "float32", gpu)
    arguments = rows.arguments(gpu)
    if n == 0:
        return
    spec = _spec(DTYPE_NAMES[out.dtype], activation, key_steps is not None, rows.chained)
    gpu.kernel(spec)(
        (num_heads, n),
        _THREADS,
        num_bytes=2 * n * states[0].nbytes,
        projected=projected,
        key_steps=key_steps,
        output_gates=output_gates,
        conv=conv,
        decay=decay,
        step_bias=step_bias,
        norm=norm,
        conv_states=conv_states,
        states=states,
        out=out,
        num_key_heads=num_key_heads,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        row_size=row_size,
        taps=taps,
        norm_eps=norm_eps,
        **arguments,
    )


def check_steps(
    gpu: Gpu,
    projected: Tensor,
    channels: int,
    values: int,
    key_steps: Tensor | None,
    step_bias: Tensor,
    states: Tensor,
) -> None:
    """Raise `ValueError` unless the columns and the steps of a decay are those of the states."""
    n, num_heads, keys = len(projected), states.shape[1], states.shape[1] * states.shape[2]
    num_columns = channels + values + 2 * num_heads
    if key_steps is not None:
        num_columns = max(projected.shape[1], channels + num_heads)
    check_tensor("projected", projected, (n, num_columns), projected.dtype, gpu)
    check_tensor("key_steps", key_steps, (n, keys), "float32", gpu)
    num_steps = num_heads if key_steps is None else keys
    check_tensor("step_bias", step_bias, (num_steps,), "float32", gpu)
