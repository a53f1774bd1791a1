"""The variants of the kernel `linear`."""

from typing import Any

from swiftchat.cuda.gpu import DTYPE_NAMES, KernelSpec
from swiftchat.cuda.ops.linear.layout import compiled_rows, streams_x
from swiftchat.cuda.ops.linear.row_changes import ARGUMENTS
from swiftchat.cuda.packed_layout import GROUP_SIZES

_ARGUMENTS = (
    "pointer weight, pointer bias, pointer x, "
    "pointer norm_weight, pointer out, float eps, float weight_offset, int n, int m, int k, "
    "int pair_span, int num_splits, int num_stages, pointer partial_sums, pointer counters, "
    "pointer cos_sin, pointer positions, pointer slot_mapping, pointer cache, int num_heads, "
    "int num_kv_heads, int head_dim, int log2_block_size, int world_size, pointer row_scale, "
    "pointer x_scale, int bias_stride, int box_rows, " + ARGUMENTS
)


def linear_spec(
    dtype: str,
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
) -> KernelSpec:
    """Return the kernel for n activation rows of dtype `dtype` (`DTYPE_NAMES`)."""
    stream_x = streams_x(cluster, is_16_bit=dtype != "float", is_plain=scheme == "PLAIN", norm=norm)
    defines = {
        "DTYPE": dtype,
        "EPILOGUE": epilogue,
        "NORM": str(int(norm)),
        "FP32_OUT": str(int(fp32_out)),
        "ACTIVATION": activation.upper(),
        "MAX_N": str(compiled_rows(n)),
        "SCHEME": scheme,
        "GROUP_SIZE": str(group_size),
        "ROW_BIAS": str(int(row_bias)),
        "LOW_RANK": str(int(low_rank)),
        "CLUSTER": str(cluster),
        "STREAM_X": str(int(stream_x)),
    }
    maps = ["tensor_map map, "] * (scheme == "PLAIN") + ["tensor_map x_map, "] * stream_x
    return KernelSpec("linear", "".join(maps) + _ARGUMENTS, defines)


_EPILOGUES: list[dict[str, Any]] = [
    {"epilogue": "STORE"},
    {"epilogue": "STORE", "norm": True},
    {"epilogue": "STORE", "norm": True, "fp32_out": True},
    {"epilogue": "RESIDUAL"},
    {"epilogue": "SEND"},
    {"epilogue": "SEND", "norm": True},
    {"epilogue": "ACT_AND_MUL", "activation": "silu"},
    {"epilogue": "ACT_AND_MUL", "norm": True, "activation": "silu"},
    {"epilogue": "ACT_AND_MUL", "norm": True, "activation": "gelu"},
    {"epilogue": "ACT_AND_MUL", "norm": True, "activation": "gelu_tanh"},
    {"epilogue": "ROPE_CACHE"},
    {"epilogue": "ROPE_CACHE", "norm": True},
]
_SHAPES: list[dict[str, Any]] = [
    {"dtype": dtype, "n": n, "cluster": 2 if n > 1 else 1}
    for dtype in DTYPE_NAMES.values()
    for n in (1, 8, 16)
]
_PACKED: list[dict[str, Any]] = [
    {"scheme": "INT8"},
    {"scheme": "FP8"},
    *({"scheme": s, "group_size": size} for s in GROUP_SIZES for size in GROUP_SIZES[s]),
]
# Two variants for each packing, with varying dtypes, sizes and epilogues: the packing does not
# change the epilogue's code.
VARIANTS = (
    [linear_spec(**shape, **epilogue) for epilogue in _EPILOGUES for shape in _SHAPES]
    + [
        linear_spec(
            **_SHAPES[(2 * i + 5 * j) % len(_SHAPES)],
            **_EPILOGUES[(2 * i + j) % len(_EPILOGUES)],
            **packing,
        )
        for i, packing in enumerate(_PACKED)
        for j in (0, 1)
    ]
    + [
        # One bias for each row, in every epilogue.
        linear_spec(**_SHAPES[i % len(_SHAPES)], **epilogue, row_bias=True)
        for i, epilogue in enumerate(_EPILOGUES)
    ]
    + [
        # Changes by adapters, in every epilogue and with every packing.
        linear_spec(**{**_SHAPES[(4 * i) % len(_SHAPES)], "cluster": 1}, **epilogue, low_rank=True)
        for i, epilogue in enumerate(_EPILOGUES)
    ]
    + [
        linear_spec(
            **{**_SHAPES[i % len(_SHAPES)], "cluster": 1},
            epilogue="RESIDUAL",
            **packing,
            low_rank=True,
        )
        for i, packing in enumerate(_PACKED)
    ]
)
