"""The variants of the kernel `linear`."""

import torch

from swiftchat.cuda.ops.linear.layout import compiled_rows, streams_x
from swiftchat.cuda.signature import Macro


def linear_macros(
    dtype: torch.dtype,
    n: int,
    epilogue: str,
    *,
    norm: bool = False,
    fp32_out: bool = False,
    activation: str = "none",
    scheme: str = "PLAIN",
    group_size: int = 0,
    row_bias: bool = False,
    low_rank: bool = False,
    cluster: int = 1,
) -> dict[str, Macro]:
    """Return the macros of the kernel for n activation rows."""
    is_16_bit, is_plain = dtype.itemsize == 2, scheme == "PLAIN"
    return {
        "DTYPE": dtype,
        "EPILOGUE": epilogue,
        "NORM": norm,
        "FP32_OUT": fp32_out,
        "ACTIVATION": activation.upper(),
        "MAX_N": compiled_rows(n),
        "SCHEME": scheme,
        "GROUP_SIZE": group_size,
        "ROW_BIAS": row_bias,
        "LOW_RANK": low_rank,
        "CLUSTER": cluster,
        "STREAM_X": streams_x(cluster, is_16_bit=is_16_bit, is_plain=is_plain, norm=norm),
    }
