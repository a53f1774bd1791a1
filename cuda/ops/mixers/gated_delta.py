"""Decode steps of gated DeltaNet and Kimi Delta Attention: `kernels/mixers/gated_delta_step.cu`."""

from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.steps import MAX_TAPS, StepSlots

_THREADS, _ROWS = 512, 8


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
    _, num_heads, key_dim, value_dim = states.shape
    (channels, taps), n, values = conv.shape, len(projected), num_heads * value_dim
    if not gated_delta_step_fits(key_dim, value_dim, taps) or num_heads % num_key_heads:
        raise ValueError(f"the kernel does not take heads of {key_dim} by {value_dim}, {taps} taps")
    if channels != 2 * num_key_heads * key_dim + values:
        raise ValueError(f"{channels} channels do not fit {num_key_heads} key heads")
    if (key_steps is None) != (output_gates is None):
        raise ValueError("key_steps and output_gates come together")
    kernel = gpu.kernel(
        "gated_delta_step",
        DTYPE=out.dtype,
        ACTIVATION=activation.upper(),
        KEY_DECAYS=key_steps is not None,
        CHAINED=rows.chained,
    )
    kernel(
        (num_heads, n),
        _THREADS,
        num_bytes=2 * n * states.nbytes // len(states),
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
        row_size=num_columns(projected, states, channels, has_key_steps=key_steps is not None),
        norm_eps=norm_eps,
        **rows.arguments(),
    )


def num_columns(projected: Tensor, states: Tensor, channels: int, *, has_key_steps: bool) -> int:
    """Return the columns that projections must have for these states."""
    _, num_heads, _, value_dim = states.shape
    if has_key_steps:
        return max(projected.shape[1], channels + num_heads)
    return channels + num_heads * (value_dim + 2)
