"""The variants of every kernel that the compiler must accept: all combinations of their macros."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from swiftchat.cuda.ops.attention.decode_attention import Layout, head_dims
from swiftchat.cuda.ops.attention.latent_attention import Layout as LatentLayout
from swiftchat.cuda.ops.attention.prefill_shapes import DIMS, PrefillShape
from swiftchat.cuda.ops.layers import norm
from swiftchat.cuda.ops.layers.act_and_mul import KINDS
from swiftchat.cuda.ops.linear import packed_gemm
from swiftchat.cuda.ops.linear.quantize import SCHEMES
from swiftchat.cuda.ops.linear.variants import linear_macros
from swiftchat.cuda.ops.mixers.steps import NORM_LAYOUTS
from swiftchat.cuda.ops.moe import experts, grouped_experts
from swiftchat.cuda.ops.moe.expert_matrices import ACTIVATIONS
from swiftchat.cuda.packed_layout import PACKINGS
from swiftchat.cuda.quantized_kv import KV_SCHEMES, PACKED_HEAD_DIMS
from swiftchat.cuda.signature import DTYPE_NAMES, KernelSpec, Macro

_BF16, _FP16, _FP32 = DTYPE_NAMES
_DTYPES, _HALVES = (_BF16, _FP16, _FP32), (_BF16, _FP16)
_SMALL, _LARGE = 99 * 1024, 227 * 1024  # shared memory: sm_86, sm_89, sm_120; data center GPUs
_FLAGS = (False, True)


def _each(name: str, **values: Iterable[Macro]) -> Iterator[KernelSpec]:
    """Yield a kernel with all combinations of values of its macros."""
    for combination in product(*values.values()):
        yield KernelSpec.of(name, **dict(zip(values, combination, strict=True)))


def _all() -> Iterator[KernelSpec]:
    kinds = [kind.upper() for kind in KINDS]
    for name in ("all_gather", "advance", "argmax", "copy_blocks", "expert_order", "penalties"):
        yield KernelSpec.of(name)
    for name in ("host_call", "route", "sample", "top_logprobs"):
        yield KernelSpec.of(name)
    for name in ("combine_splits", "latent_combine", "latent_rotary"):
        yield from _each(name, DTYPE=_HALVES)
    for name in ("expert_sum", "low_rank_expand", "router"):
        yield from _each(name, DTYPE=_DTYPES)
    yield from _each("scale_gemm_output", DTYPE=_DTYPES)
    yield from _each("gather_rows", WIDTH=(4, 1))
    yield from _each("low_rank_shrink", DTYPE=_DTYPES, NORM=_FLAGS)
    yield from _each("rotate_heads", DTYPE=_HALVES, HEAD_DIM=PACKED_HEAD_DIMS)
    for threads, vectors in norm.LAYOUTS:
        layout = {"BLOCK": [threads], "VECTORS": [vectors]}
        yield from _each("norm", DTYPE=_DTYPES, LAYER_NORM=_FLAGS, **layout)
        yield from _each("add_norm", DTYPE=_DTYPES, ZERO_DELTA=_FLAGS, **layout)
    for width, rows in ((8, 4), (8, 1), (1, 1)):
        access = {"WIDTH": [width], "ROWS": [rows]}
        yield from _each("act_and_mul", DTYPE=_DTYPES, ACTIVATION=kinds, GATED=_FLAGS, **access)
        yield from _each("act_and_mul", DTYPE=_DTYPES, ACTIVATION=["SIGMOID"], GATED=[1], **access)
    for dtype, send in (*((dtype, True) for dtype in _DTYPES), (_FP32, False)):
        yield from _each("all_reduce", DTYPE=[dtype], SEND=[send], WORLD_SIZE=(2, 4, 8))
    yield from _each("embed", DTYPE=_DTYPES, WIDTH=(8, 1), SCHEME=["PLAIN"], GROUP_SIZE=[0])
    for i, packing in enumerate(PACKINGS):  # one dtype is enough
        yield KernelSpec.of("embed", DTYPE=_DTYPES[i % 3], WIDTH=8, **_packing(*packing))
    # Each way of reading a row with each scheme. One dtype for each is enough.
    for i, (j, scheme) in product(range(3), enumerate(SCHEMES)):
        macros: dict[str, Macro] = {"DTYPE": _DTYPES[(i + j) % 3], "SCHEME": scheme.upper()}
        yield KernelSpec.of("quantize", **macros, AS_T=i % 2, VECTORS=(2, 8, 0)[i])
    for packing, dtype in product(PACKINGS, _DTYPES):
        yield KernelSpec.of("dequantize", DTYPE=dtype, **_packing(*packing))
    for name in (_rotary, _decode_attention, _prefill_attention, _mixers, _experts, _gemms):
        yield from name()


def _packing(scheme: str, group_size: int) -> dict[str, Macro]:
    return {"SCHEME": scheme, "GROUP_SIZE": group_size}


def _rotary() -> Iterator[KernelSpec]:
    yield from _each("rotary", DTYPE=_DTYPES, QK_NORM=_FLAGS, WIDTH=(8, 4, 2, 1))
    for dtype, is_normed, scheme in (
        (_BF16, False, "int8"),
        (_FP16, True, "fp8"),
        (_BF16, True, "int5"),
        (_FP16, False, "int5"),
    ):
        scheme_macro = KV_SCHEMES[scheme]
        macros: dict[str, Macro] = {"DTYPE": dtype, "QK_NORM": is_normed}
        yield KernelSpec.of("rotary", **macros, WIDTH=8, KV_SCHEME=scheme_macro)


def _decode_attention() -> Iterator[KernelSpec]:
    layouts = [
        Layout.of(dtype, head_dim, group_size, shared_bytes)
        for dtype in _DTYPES
        for head_dim in head_dims(dtype)
        for group_size in ((4,) if dtype == _FP32 or head_dim >= 256 else (4, 16))
        for shared_bytes in (_SMALL, _LARGE)
    ]
    layouts += [
        Layout.of(*sizes)
        for sizes in (
            (_BF16, 128, 4, _SMALL // 2, None),
            (_BF16, 128, 16, _SMALL // 2, None),
            (_BF16, 64, 4, _LARGE, "int8"),
            (_BF16, 128, 16, _SMALL // 2, "int8"),
            (_FP16, 256, 4, _SMALL, "int8"),
            (_BF16, 512, 4, _LARGE, "int8"),
            (_FP16, 512, 4, _SMALL // 2, "fp8"),
            (_BF16, 512, 4, _SMALL // 2, None),
            (_FP16, 96, 4, _SMALL // 2, "fp8"),
            (_BF16, 128, 4, _LARGE, "fp8"),
            (_BF16, 64, 4, _LARGE, "int5"),
            (_FP16, 64, 16, _SMALL, "int5"),
            (_FP16, 128, 4, _SMALL // 2, "int5"),
            (_BF16, 128, 16, _SMALL, "int5"),
            (_BF16, 128, 4, _LARGE, "int5"),
        )
    ]
    layouts += [
        Layout.of(dtype, head_dim, group_size, shared_bytes, rotary=True)
        for dtype in _DTYPES
        for head_dim, group_size in ((64, 4), (128, 4), (128, 16), (256, 4))
        for shared_bytes in (_SMALL, _LARGE)
    ]
    for layout in layouts:
        yield KernelSpec.of("decode_attention", **layout.macros)
    for dtype, (rank, rope) in product(_HALVES, ((256, 32), (512, 64))):
        for num_heads, large in ((16, False), (16, True), (32, True), (128, True)):
            macros = LatentLayout.of(dtype, rank, rope, num_heads, large).macros
            yield KernelSpec.of("latent_attention", **macros)


def _prefill_attention() -> Iterator[KernelSpec]:
    shapes = [
        (PrefillShape(path, dim, biased, small), dtype)
        for path, dims in DIMS.items()
        for dim in dims
        for dtype in ((_FP32,) if path == "fma" else _HALVES)
        for biased in _FLAGS
        for small in (_FLAGS if path == "mma" else (False,))
    ]
    shapes += [
        (PrefillShape("mma", dim, biased, small, scheme), dtype)
        for dim, biased, small, dtype, scheme in (
            (64, True, False, _BF16, "int8"),
            (80, False, True, _FP16, "int8"),
            (128, False, False, _BF16, "fp8"),
            (256, True, True, _FP16, "fp8"),
            (64, True, True, _FP16, "int5"),
            (128, False, False, _BF16, "int5"),
        )
    ]
    shapes += [
        (PrefillShape(path, dim, biased, small, scheme, split=True), dtype)
        for path, dim, biased, small, scheme, dtype in (
            ("mma", 64, False, False, None, _BF16),
            ("mma", 80, True, True, None, _FP16),
            ("mma", 256, False, True, None, _BF16),
            ("mma", 512, False, False, None, _BF16),
            ("mma", 512, False, True, "int8", _FP16),
            ("mma", 128, False, False, "int8", _BF16),
            ("mma", 64, False, False, "int5", _BF16),
            *(("wgmma", dim, False, False, None, _BF16) for dim in DIMS["wgmma"]),
            ("wgmma", 128, True, False, None, _FP16),
        )
    ]
    for shape, dtype in shapes:
        yield KernelSpec.of("prefill_attention", **shape.macros(dtype))


def _mixers() -> Iterator[KernelSpec]:
    kinds = [kind.upper() for kind in KINDS]
    steps: dict[str, Iterable[Macro]] = {"DTYPE": _DTYPES, "ACTIVATION": kinds, "CHAINED": _FLAGS}
    sizes: dict[str, Iterable[Macro]] = {"FP32_OUT": _FLAGS, "VECTORS": (1, 2)}
    yield from _each("gated_delta_step", **steps, KEY_DECAYS=_FLAGS)
    yield from _each("mamba2_step", **steps, **sizes)
    for kind in ("NONE", *kinds):
        conv: dict[str, Iterable[Macro]] = {"ACTIVATION": [kind], "GATED": [kind == "NONE"]}
        yield from _each("causal_conv", DTYPE=_DTYPES, **conv)
        yield from _each("causal_conv_step", DTYPE=_DTYPES, CHAINED=_FLAGS, **conv)
    yield from _each("gated_delta_scan", DTYPE=_DTYPES, KEY_DECAYS=_FLAGS)
    yield from _each("mamba2_scan", DTYPE=_DTYPES, **sizes)
    yield from _each("selective_step", DTYPE=_DTYPES, VECTORS=(1, 2, 4), CHAINED=_FLAGS)
    yield from _each("selective_scan", DTYPE=_DTYPES, VECTORS=(1, 2, 4))
    for threads, vectors in NORM_LAYOUTS:
        yield from _each("gated_norm", DTYPE=_DTYPES, BLOCK=[threads], VECTORS=[vectors])


def _experts() -> Iterator[KernelSpec]:
    plain = [(dtype, "PLAIN", 0) for dtype in _DTYPES]
    packed = [(dtype, *packing) for packing in PACKINGS for dtype in _HALVES]
    matrices = [*plain, *packed]
    activations = [activation.upper() for activation in ACTIVATIONS]
    for dtype, scheme, group_size in matrices:
        macros: dict[str, Macro] = {"DTYPE": dtype, **_packing(scheme, group_size)}
        yield KernelSpec.of("expert_down", **macros, **experts.DOWN.macros)
        if scheme == "PLAIN":
            yield KernelSpec.of("expert_down", **macros, **experts.DOWN_OF_ONE.macros)
            yield from _each("expert_gate_up", DTYPE=[dtype], ACTIVATION=activations)
        for activation in activations:
            if scheme != "PLAIN":
                tiling = experts.gate_tiling(scheme).macros
                yield KernelSpec.of("packed_gate_up", ACTIVATION=activation, **macros, **tiling)
            if dtype != _FP32:
                yield KernelSpec.of("bulk_gate_up", ACTIVATION=activation, **macros)
        for rows in (grouped_experts.LARGE_TILE, grouped_experts.SMALL_TILE):
            tiles = grouped_experts.Tiling(dtype, scheme, group_size, rows).macros
            yield KernelSpec.of("grouped_down", **tiles)
            for activation in activations:
                yield KernelSpec.of("grouped_gate_up", ACTIVATION=activation, **tiles)


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
    {"dtype": dtype, "n": n, "cluster": 2 if n > 1 else 1} for dtype in _DTYPES for n in (1, 8, 16)
]


def _gemms() -> Iterator[KernelSpec]:
    for options in _linear_options():
        yield KernelSpec.of("linear", **linear_macros(**options))
    for path, sizes in packed_gemm.PATHS.items():
        for rows, packing, dtype in product(sizes, PACKINGS, _HALVES):
            for warps in packed_gemm.numbers_of_warps(rows, path):
                macros: dict[str, Macro] = {"BLOCK_N": rows, "CONSUMER_WARPS": warps, "PATH": path}
                yield KernelSpec.of("packed_gemm", DTYPE=dtype, **_packing(*packing), **macros)


def _linear_options() -> Iterator[dict[str, Any]]:
    packings = [{"scheme": scheme, "group_size": group_size} for scheme, group_size in PACKINGS]
    yield from ({**shape, **epilogue} for epilogue in _EPILOGUES for shape in _SHAPES)
    # Two variants for each packing, with varying dtypes, sizes and epilogues: the packing does not
    # change the epilogue's code.
    for (i, packing), j in product(enumerate(packings), (0, 1)):
        shape = _SHAPES[(2 * i + 5 * j) % len(_SHAPES)]
        yield {**shape, **_EPILOGUES[(2 * i + j) % len(_EPILOGUES)], **packing}
    # One bias for each row, and changes by adapters, in every epilogue; changes with every packing.
    for i, epilogue in enumerate(_EPILOGUES):
        yield {**_SHAPES[i % len(_SHAPES)], **epilogue, "row_bias": True}
        changed = {**_SHAPES[(4 * i) % len(_SHAPES)], "cluster": 1, "low_rank": True}
        yield {**changed, **epilogue}
    for i, packing in enumerate(packings):
        changed = {**_SHAPES[i % len(_SHAPES)], "cluster": 1, "low_rank": True}
        yield {**changed, "epilogue": "RESIDUAL", **packing}


def all_variants() -> dict[str, list[KernelSpec]]:
    """Return the variants of every kernel by its name, each of them once."""
    found: dict[str, dict[Any, KernelSpec]] = {}
    for spec in _all():
        found.setdefault(spec.name, {})[spec.key] = spec
    return {name: list(specs.values()) for name, specs in found.items()}
