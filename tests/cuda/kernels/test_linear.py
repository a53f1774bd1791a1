"""linear against fp64, with all fused operations.

Tolerances: the result is rounded once. A normed input is rounded too; summed over many random terms
this is less than one rounding of the result. fp32 sums differ by their order.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import linear as op
from swiftchat.cuda.ops.linear.layout import linear_fits
from swiftchat.cuda.ops.linear.linear import Norm, RopeCache, Workspace
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu
SHAPES = [(4096, 4096), (97, 576), (1536, 48), (5000, 2056), (64, 14336), (8, 8)]
EPS = 1e-5


@pytest.fixture(scope="module")
def workspace(gpu: Gpu) -> Iterator[Workspace]:
    shared = Workspace(gpu, 4096)
    yield shared
    assert not shared.counters.any()


def tolerance(dtype: torch.dtype, normed: bool = False) -> float:
    return ROUNDING[dtype] * (2 if normed else 1) if dtype != torch.float32 else 1e-5


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), SHAPES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 16])
def test_matmul_with_bias(gpu: Gpu, workspace: Workspace, dtype, rows: int, k: int, n: int) -> None:
    make = Inputs(rows + k + n, dtype)
    x, weight, bias = make.normal(n, k), make.normal(rows, k), make.normal(rows)
    if not linear_fits(gpu, n, weight):
        pytest.skip("too large without splits")
    expected = x.double() @ weight.double().T + bias.double()
    out = poisoned(n, rows, dtype=dtype)
    op.linear(gpu, op.LinearInput(x, bias=bias), weight, out, workspace)
    assert_close(out, expected, tolerance(dtype))
    wide = poisoned(n, rows, dtype=torch.float32)
    op.linear(gpu, op.LinearInput(x, bias=bias), weight, wide, workspace)
    assert_close(wide, expected, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), [(128256, 2048), (99, 576), (4096, 8192)])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_norm_before_the_matmul(
    gpu: Gpu, workspace: Workspace, dtype, rows: int, k: int, n: int
) -> None:
    make = Inputs(rows + k + n, dtype)
    x = make.normal(n, k, dtype=torch.float32, scale=50)
    weight, scale = make.normal(rows, k), make.normal(k)
    if not linear_fits(gpu, n, weight):
        pytest.skip("too large")
    out = poisoned(n, rows, dtype=torch.float32)
    op.linear(gpu, op.LinearInput(x, norm=Norm(scale, EPS)), weight, out, workspace)
    assert_close(out, rms_norm(x, scale) @ weight.double().T, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 16])
def test_a_bias_for_each_row(gpu: Gpu, workspace: Workspace, dtype, n: int) -> None:
    """Also a part of the columns of a wider tensor, as for one of several matrices."""
    make = Inputs(n, dtype)
    x, weight, biases = make.normal(n, 576), make.normal(200, 576), make.normal(n, 520)
    residual = make.normal(n, 200, dtype=torch.float32)
    for bias in (biases[:, 320:], biases[:, :200].contiguous()):
        expected = x.double() @ weight.double().T + bias.double()
        out = poisoned(n, 200, dtype=dtype)
        op.linear(gpu, op.LinearInput(x, bias=bias), weight, out, workspace)
        assert_close(out, expected, tolerance(dtype))
        total = residual.clone()
        op.linear_residual(gpu, op.LinearInput(x, bias=bias), weight, total, workspace)
        assert_close(total, residual.double() + expected, 1e-5)
    with pytest.raises(ValueError, match="bias must be"):
        op.linear(gpu, op.LinearInput(x, bias=biases), weight, out, workspace)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5])
def test_weight_offset_of_the_norm(gpu: Gpu, workspace: Workspace, dtype, n: int) -> None:
    make = Inputs(n, dtype)
    x, scale = make.normal(n, 2304, dtype=torch.float32), make.normal(2304)
    weight = make.normal(99, 2304)
    out = poisoned(n, 99, dtype=torch.float32)
    op.linear(
        gpu, op.LinearInput(x, norm=Norm(scale, EPS, weight_offset=1.0)), weight, out, workspace
    )
    expected = rms_norm(x, scale.double() + 1) @ weight.double().T
    assert_close(out, expected, tolerance(dtype, normed=True))


def test_norm_of_a_residual_stream_beyond_fp16(gpu: Gpu, workspace: Workspace) -> None:
    make = Inputs(3, torch.float16)
    x = make.normal(2, 512, dtype=torch.float32, scale=1e5)
    weight, scale = make.normal(64, 512), make.normal(512)
    out = poisoned(2, 64, dtype=torch.float16)
    op.linear(gpu, op.LinearInput(x, norm=Norm(scale, EPS)), weight, out, workspace)
    assert_close(out, rms_norm(x, scale) @ weight.double().T, tolerance(torch.float16, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), [(4096, 14336), (2048, 2048), (77, 28672), (576, 1536)])
@pytest.mark.parametrize("n", [1, 5, 8, 16])
def test_residual_add_is_exact_and_repeatable(gpu: Gpu, dtype, rows: int, k: int, n: int) -> None:
    make = Inputs(rows + k + n, dtype)
    x, weight, bias = make.normal(n, k), make.normal(rows, k), make.normal(rows)
    residual = make.normal(n, rows, dtype=torch.float32, scale=100)
    workspace = Workspace(gpu, rows)
    workspace.partial_sums.fill_(float("nan"))
    expected = residual.double() + x.double() @ weight.double().T + bias.double()
    found = []
    for _ in range(3):  # the counters must be reset
        stream = residual.clone()
        op.linear_residual(gpu, op.LinearInput(x, bias=bias), weight, stream, workspace)
        assert_close(stream, expected, 1e-5)
        found.append(stream)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not workspace.counters.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("inner", "k", "n"), [(14336, 4096, 1), (80, 48, 5), (1536, 576, 12)])
@pytest.mark.parametrize("normed", [True, False])
def test_act_and_mul(
    gpu: Gpu, workspace: Workspace, dtype, activation: str, inner: int, k: int, n: int, normed: bool
) -> None:
    make = Inputs(inner + n, dtype)
    x = make.normal(n, k, dtype=torch.float32 if normed else dtype)
    weight, scale, bias = (
        make.normal(2 * inner, k, scale=k**-0.5),
        make.normal(k),
        make.normal(2 * inner),
    )
    norm, inputs = (Norm(scale, EPS), rms_norm(x, scale)) if normed else (None, x.double())
    gate, up = (inputs @ weight.double().T + bias.double()).chunk(2, -1)
    function = {
        "silu": torch.nn.functional.silu,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }[activation]
    out = poisoned(n, inner, dtype=dtype)
    op.linear_act_and_mul(
        gpu, op.LinearInput(x, norm=norm, bias=bias), weight, out, workspace, activation=activation
    )
    assert_close(out, function(gate) * up, tolerance(dtype, normed=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (6, 2, 8), (9, 3, 64)])
@pytest.mark.parametrize("n", [1, 6, 13])
@pytest.mark.parametrize("normed", [True, False])
def test_rope_and_cache_write(
    gpu: Gpu,
    workspace: Workspace,
    dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    n: int,
    normed: bool,
) -> None:
    make = Inputs(heads + n, dtype)
    k, num_blocks, block_size = 576, 50, 16
    rows = (heads + 2 * kv_heads) * head_dim
    x = make.normal(n, k, dtype=torch.float32 if normed else dtype)
    weight, scale, bias = make.normal(rows, k, scale=k**-0.5), make.normal(k), make.normal(rows)
    norm, inputs = (Norm(scale, EPS), rms_norm(x, scale)) if normed else (None, x.double())
    positions = make.integers(0, 1000, n)
    angles = torch.rand(1000, head_dim // 2, device="cuda", dtype=torch.float64) * 7
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).float()
    slots = make.permutation(num_blocks * block_size)[:n].contiguous()
    slots[-1] = -1 if n > 1 else slots[-1]
    cache = poisoned(num_blocks, 2 * kv_heads, block_size, head_dim, dtype=dtype)
    queries = poisoned(n, heads, head_dim, dtype=dtype)
    rope = RopeCache(cos_sin, positions, slots, cache, heads)
    op.linear_rope_cache(
        gpu, op.LinearInput(x, norm=norm, bias=bias), weight, queries, workspace, rope=rope
    )

    qkv = (inputs @ weight.double().T + bias.double()).view(n, -1, head_dim)
    cos, sin = angles[positions].cos().unsqueeze(1), angles[positions].sin().unsqueeze(1)
    low, high = qkv[:, : heads + kv_heads].chunk(2, -1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    expected = torch.cat([rotated, qkv[:, heads + kv_heads :]], 1)
    assert_close(queries, expected[:, :heads], tolerance(dtype, normed=True))
    stored = slots >= 0
    blocks, places = slots[stored] // block_size, slots[stored] % block_size
    assert_close(cache[blocks, :, places], expected[stored, heads:], tolerance(dtype, normed=True))
    assert cache.isfinite().sum() == stored.sum() * 2 * kv_heads * head_dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "k"), [(512, 4096), (99, 576), (48, 2056), (40, 14336), (2120, 8)]
)
@pytest.mark.parametrize("normed", [False, True])
def test_row_does_not_depend_on_other_rows(
    gpu: Gpu, workspace: Workspace, dtype, rows: int, k: int, normed: bool
) -> None:
    """Bit for bit, unless so many rows need splits of k, which have sums of their own."""
    make = Inputs(rows + k, dtype)
    x = make.normal(16, k, dtype=torch.float32 if normed else dtype)
    weight, norm = make.normal(rows, k), Norm(make.normal(k), EPS) if normed else None
    alone = []
    for i in range(16):
        alone.append(poisoned(1, rows, dtype=torch.float32))
        op.linear(gpu, op.LinearInput(x[i : i + 1], norm=norm), weight, alone[i], workspace)
    counts = [n for n in range(2, 17) if linear_fits(gpu, n, weight)]
    assert counts[:3] == [2, 3, 4]
    for n in counts:
        together = poisoned(n, rows, dtype=torch.float32)
        op.linear(gpu, op.LinearInput(x[:n], norm=norm), weight, together, workspace)
        assert torch.equal(together, torch.cat(alone[:n]))


def test_unsupported_shapes_raise(gpu: Gpu, workspace: Workspace) -> None:
    make = Inputs(1, torch.bfloat16)
    with pytest.raises(ValueError, match="17 activation rows"):
        op.linear(
            gpu,
            op.LinearInput(make.normal(17, 64)),
            make.normal(8, 64),
            make.normal(17, 8),
            workspace,
        )
    with pytest.raises(ValueError, match="does not take"):
        op.linear(
            gpu,
            op.LinearInput(make.normal(1, 63)),
            make.normal(8, 63),
            make.normal(1, 8),
            workspace,
        )
    with pytest.raises(ValueError, match="out must be"):
        op.linear(
            gpu,
            op.LinearInput(make.normal(1, 64)),
            make.normal(8, 64),
            make.normal(1, 9),
            workspace,
        )
