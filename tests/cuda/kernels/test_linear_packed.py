"""linear with 8-bit and 4-bit weights against fp64, with all fused operations.

Tolerances as in test_linear.py, plus the order of the sums, because weights become the activations'
dtype exactly. One 16-bit activation row with INT8 or INT4 weights becomes int8 planes: 15 bits and
a power of two for 32 to 128 neighbors, so neighbors of a much larger element lose bits.
"""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import linear as op
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import Norm, RopeCache, Workspace
from swiftchat.cuda.packed_layout import PACKINGS
from swiftchat.cuda.packed_matrix import pack_int4, pack_int8
from tests.support.gpu_ranks import peer_buffers
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize(("scheme", "group"), PACKINGS)]
SHAPES = [(4096, 4096), (97, 640), (1536, 128), (5000, 2176), (64, 14336), (8, 128)]
FP32_SUMS, INT8_PLANES = 2e-5, 2.0**-13
EPS = 1e-5


@pytest.fixture(scope="module")
def workspace(gpu: Gpu) -> Iterator[Workspace]:
    shared = Workspace(gpu, 4096)
    yield shared
    assert not shared.counters.any()


def tolerance(dtype: torch.dtype, normed: bool = False) -> float:
    return ROUNDING[dtype] * (2 if normed else 1) if dtype != torch.float32 else FP32_SUMS


def uses_int8_planes(scheme: str, dtype: torch.dtype, n: int) -> bool:
    return n == 1 and scheme != "FP8" and dtype != torch.float32


def sums(scheme: str, dtype: torch.dtype, n: int) -> float:
    """Return the tolerance of fp32 results for n activation rows."""
    return INT8_PLANES if uses_int8_planes(scheme, dtype, n) else FP32_SUMS


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 16])
def test_matmul_with_bias(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + k + n, dtype)
    weight, meant = packed(make, scheme, group, rows, k, magnitude=0.05)
    if not linear_fits(gpu, n, weight):
        pytest.skip("too large without splits")
    x, bias = make.normal(n, k), make.normal(rows)
    expected = x.double() @ meant.T + bias.double()
    out = poisoned(n, rows, dtype=dtype)
    op.linear(gpu, op.LinearInput(x, bias=bias), weight, out, workspace)
    assert_close(out, expected, tolerance(dtype))
    wide = poisoned(n, rows, dtype=torch.float32)
    op.linear(gpu, op.LinearInput(x, bias=bias), weight, wide, workspace)
    assert_close(wide, expected, sums(scheme, dtype, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 8, 16])
def test_error_of_each_weight_row(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, dtype, n: int
) -> None:
    """Rows of very different sizes, and two columns that dominate."""
    make = Inputs(n, dtype)
    weight, meant = packed(make, scheme, group, 72, 1280, magnitude=0.05, uneven=1000)
    x = make.normal(n, 1280)
    x[:, 77] *= 300
    x[:, 1279] *= 100
    out = poisoned(n, 72, dtype=torch.float32)
    op.linear(gpu, op.LinearInput(x), weight, out, workspace)
    expected = x.double() @ meant.T
    # The worst case: 15 bits of the largest element for int8 planes, otherwise fp32's 24 bits.
    bits = 15 if uses_int8_planes(scheme, dtype, n) else 21
    worst = 2.0**-bits * x.double().abs().amax(1, keepdim=True) * meant.abs().sum(1)
    assert ((out - expected).abs() <= worst).all()
    for row in range(72 if bits > 15 else 0):
        assert_close(out[:, row], expected[:, row], 5 * FP32_SUMS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), [(30000, 2048), (99, 640), (4096, 8192)])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_norm_before_the_matmul(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + k + n, dtype)
    weight, meant = packed(make, scheme, group, rows, k)
    if not linear_fits(gpu, n, weight):
        pytest.skip("too large")
    x, scale = make.normal(n, k, dtype=torch.float32, scale=50), make.normal(k)
    out = poisoned(n, rows, dtype=torch.float32)
    op.linear(
        gpu, op.LinearInput(x, norm=Norm(scale, EPS, weight_offset=1.0)), weight, out, workspace
    )
    expected = rms_norm(x, scale.double() + 1) @ meant.T
    assert_close(out, expected, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), [(4096, 14336), (77, 28672), (640, 1536)])
@pytest.mark.parametrize("n", [1, 5, 8, 16])
def test_residual_add_is_exact_and_repeatable(
    gpu: Gpu, scheme: str, group: int, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + k + n, dtype)
    weight, meant = packed(make, scheme, group, rows, k)
    if not linear_fits(gpu, n, weight, splittable=True):
        pytest.skip("too large")
    x, bias = make.normal(n, k), make.normal(rows)
    residual = make.normal(n, rows, dtype=torch.float32, scale=100)
    workspace = Workspace(gpu, rows)
    workspace.partial_sums.fill_(float("nan"))
    expected = residual.double() + x.double() @ meant.T + bias.double()
    found = []
    for _ in range(3):  # the counters must be as they were
        stream = residual.clone()
        op.linear_residual(gpu, op.LinearInput(x, bias=bias), weight, stream, workspace)
        assert_close(stream, expected, sums(scheme, dtype, n))
        found.append(stream)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not workspace.counters.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k", "n"), [(576, 2048, 1), (40, 14336, 7)])
def test_send_to_peer_buffers(
    gpu: Gpu, scheme: str, group: int, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + n, dtype)
    weight, meant = packed(make, scheme, group, rows, k)
    x, buffers = make.normal(n, k), peer_buffers(3, n * rows)
    op.linear_send(gpu, op.LinearInput(x), weight, buffers[1], Workspace(gpu, rows))
    for buffer in buffers:
        assert_close(buffer.own[1].view(n, rows), x.double() @ meant.T, sums(scheme, dtype, n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("inner", "k", "n"), [(14336, 4096, 1), (80, 128, 5), (1536, 640, 12)])
def test_act_and_mul(
    gpu: Gpu,
    workspace: Workspace,
    scheme: str,
    group: int,
    dtype,
    activation: str,
    inner: int,
    k: int,
    n: int,
) -> None:
    make = Inputs(inner + n, dtype)
    weight, meant = packed(make, scheme, group, 2 * inner, k, magnitude=k**-0.5)
    x, scale, bias = make.normal(n, k, dtype=torch.float32), make.normal(k), make.normal(2 * inner)
    gate, up = (rms_norm(x, scale) @ meant.T + bias.double()).chunk(2, -1)
    function = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }[activation]
    out = poisoned(n, inner, dtype=dtype)
    op.linear_act_and_mul(
        gpu,
        op.LinearInput(x, norm=Norm(scale, EPS), bias=bias),
        weight,
        out,
        workspace,
        activation=activation,
    )
    assert_close(out, function(gate) * up, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (6, 2, 16), (9, 3, 64)])
@pytest.mark.parametrize("n", [1, 6, 13])
def test_rope_and_cache_write(
    gpu: Gpu,
    workspace: Workspace,
    scheme: str,
    group: int,
    dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    n: int,
) -> None:
    make = Inputs(heads + n, dtype)
    k, num_blocks, block_size = 640, 50, 16
    rows = (heads + 2 * kv_heads) * head_dim
    weight, meant = packed(make, scheme, group, rows, k, magnitude=0.04)
    x, scale, bias = make.normal(n, k, dtype=torch.float32), make.normal(k), make.normal(rows)
    positions = make.integers(0, 1000, n)
    angles = make.normal(1000, head_dim // 2, dtype=torch.float64) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).float()
    slots = make.permutation(num_blocks * block_size)[:n].contiguous()
    cache = poisoned(num_blocks, 2 * kv_heads, block_size, head_dim, dtype=dtype)
    queries = poisoned(n, heads, head_dim, dtype=dtype)
    rope = RopeCache(cos_sin, positions, slots, cache, heads)
    op.linear_rope_cache(
        gpu,
        op.LinearInput(x, norm=Norm(scale, EPS), bias=bias),
        weight,
        queries,
        workspace,
        rope=rope,
    )

    qkv = (rms_norm(x, scale) @ meant.T + bias.double()).view(n, -1, head_dim)
    cos, sin = angles[positions].cos().unsqueeze(1), angles[positions].sin().unsqueeze(1)
    low, high = qkv[:, : heads + kv_heads].chunk(2, -1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    expected = torch.cat([rotated, qkv[:, heads + kv_heads :]], 1)
    assert_close(queries, expected[:, :heads], tolerance(dtype, normed=True))
    blocks, places = slots // block_size, slots % block_size
    assert_close(cache[blocks, :, places], expected[:, heads:], tolerance(dtype, normed=True))
    assert cache.isfinite().sum() == n * 2 * kv_heads * head_dim


@pytest.mark.parametrize("n", [1, 13])
@pytest.mark.parametrize("ends", [(8, 10), (6, 10), (6, 8, 10)])
def test_some_heads_equal_all_heads(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, n: int, ends: tuple[int, ...]
) -> None:
    """Queries and keys, then values, or each separately: bitwise equal to all heads together."""
    make, heads, kv_heads, head_dim = Inputs(n, torch.bfloat16), 6, 2, 64
    weight, _ = packed(make, scheme, group, ends[-1] * head_dim, 640)
    x, scale = make.normal(n, 640, dtype=torch.float32), make.normal(640)
    bias, cos_sin = make.normal(len(weight)), make.normal(1000, head_dim, dtype=torch.float32)
    positions, slots = make.integers(0, 1000, n), make.permutation(50 * 16)[:n].contiguous()

    def written(borders: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        cache = poisoned(50, 2 * kv_heads, 16, head_dim, dtype=torch.bfloat16)
        queries = poisoned(n, heads, head_dim, dtype=torch.bfloat16)
        rope = RopeCache(cos_sin, positions, slots, cache, heads)
        for first, end in itertools.pairwise((0, *borders)):
            rows = slice(first * head_dim, end * head_dim)
            op.linear_rope_cache(
                gpu,
                op.LinearInput(x, norm=Norm(scale, EPS), bias=bias[rows]),
                weight.rows(rows.start, rows.stop),
                queries,
                workspace,
                rope=rope,
                first_head=first,
            )
        return queries, cache.nan_to_num(7.0)

    for found, expected in zip(written(ends), written((ends[-1],)), strict=True):
        assert torch.equal(found, expected)
    rope = RopeCache(cos_sin, positions, slots, poisoned(50, 4, 16, 64, dtype=x.dtype), heads)
    with pytest.raises(ValueError, match="whole heads"):
        op.linear_rope_cache(
            gpu,
            op.LinearInput(x, norm=Norm(scale, EPS)),
            weight.rows(0, 64),
            x,
            workspace,
            rope=rope,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
def test_row_does_not_depend_on_other_rows(
    gpu: Gpu, workspace: Workspace, scheme: str, group: int, dtype, normed: bool
) -> None:
    """Bit for bit. A single row as int8 planes differs, and so do INT4's sums of squares."""
    make = Inputs(3, dtype)
    weight, _ = packed(make, scheme, group, 120, 4224)
    x = make.normal(16, 4224, dtype=torch.float32 if normed else dtype)
    norm = Norm(make.normal(4224), EPS) if normed else None
    found = []
    for n in range(2, 17):
        out = poisoned(n, 120, dtype=torch.float32)
        if linear_fits(gpu, n, weight):
            op.linear(gpu, op.LinearInput(x[:n], norm=norm), weight, out, workspace)
            found.append(out)
    assert len(found) > 4
    for out in found:
        assert torch.equal(out, found[-1][: len(out)])
    if not uses_int8_planes(scheme, dtype, 1) and not (scheme == "INT4" and normed):
        for i in range(2):
            single = poisoned(1, 120, dtype=torch.float32)
            op.linear(gpu, op.LinearInput(x[i : i + 1], norm=norm), weight, single, workspace)
            assert torch.equal(single, found[0][i : i + 1])


def test_unsupported_shapes_raise(gpu: Gpu, workspace: Workspace, scheme: str, group: int) -> None:
    make = Inputs(1, torch.bfloat16)
    weight, _ = packed(make, scheme, group, 8, 128)
    with pytest.raises(ValueError, match="17 activation rows"):
        op.linear(gpu, op.LinearInput(make.normal(17, 128)), weight, make.normal(17, 8), workspace)
    with pytest.raises(ValueError, match="does not take"):  # half of 24 rows: no whole tiles
        three, _ = packed(make, scheme, group, 24, 128)
        wide, norm = make.normal(1, 128, dtype=torch.float32), Norm(make.normal(128), EPS)
        out = make.normal(1, 12)
        op.linear_act_and_mul(
            gpu, op.LinearInput(wide, norm=norm), three, out, workspace, activation="silu"
        )
    with pytest.raises(ValueError, match="x must be"):
        op.linear(gpu, op.LinearInput(make.normal(1, 256)), weight, make.normal(1, 8), workspace)
    with pytest.raises(ValueError, match="columns"):
        if scheme == "INT4":
            codes = make.integers(0, 256, 8, 40, dtype=torch.uint8)
            pack_int4(codes, make.normal(8, 5), make.normal(8, 5), torch.bfloat16)
        else:
            codes = make.integers(-128, 128, 8, 24, dtype=torch.int8)
            pack_int8(codes, make.normal(8, dtype=torch.float32), torch.bfloat16)
