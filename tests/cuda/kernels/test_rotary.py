"""rotary against fp64. Tolerance: one rounding; elements that are not rotated are equal."""

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.rotary import HeadNorm, rotary
from swiftchat.cuda.quantized_kv import KVScales
from swiftchat.engine.model.int5_kv import pack_kv, unpack_kv
from swiftchat.engine.model.quantized_kv import quantize_kv
from tests.support.kernels.case import (
    DTYPES,
    ROUNDING,
    Inputs,
    assert_close,
    hadamard_matrix,
    poisoned,
)

pytestmark = pytest.mark.gpu
POSITIONS = 500


def angles(rotary_dim: int) -> Tensor:
    """Return cosines and sines of angles that differ for every position and pair."""
    speeds = 100.0 ** -(torch.arange(rotary_dim // 2, device="cuda").double() / rotary_dim)
    turns = torch.outer(torch.arange(POSITIONS, device="cuda").double(), speeds)
    return torch.cat((turns.cos(), turns.sin()), 1).float()


def rotated(x: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """Rotate the first rotary_dim elements of the fp64 x [n, heads, dim]."""
    rotary_dim = table.shape[1]
    cos, sin = table.double()[positions.long()].unsqueeze(1).chunk(2, -1)
    part, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    a, b = part.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class Case:
    """Random heads with slots scattered over a poisoned cache; every third token has no slot."""

    def __init__(
        self,
        dtype: torch.dtype,
        n: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int = 16,
    ) -> None:
        make = Inputs(n * head_dim + heads, dtype)
        self.heads, self.kv_heads = heads, kv_heads
        self.qkv = make.normal(n, heads + 2 * kv_heads, head_dim)
        self.before = self.qkv.clone()
        self.positions = make.integers(0, POSITIONS, n)
        blocks = n // block_size + 3
        self.cache = poisoned(blocks, 2 * kv_heads, block_size, head_dim, dtype=dtype)
        self.slots = make.permutation(blocks * block_size)[:n].contiguous()
        if n > 2:
            self.slots[::3] = -1

    def run(self, gpu: Gpu, table: Tensor | None, **options) -> None:
        rotary(
            gpu,
            self.qkv,
            self.cache,
            cos_sin=table,
            positions=self.positions,
            slot_mapping=self.slots,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            **options,
        )

    def check(self, expected: Tensor, tolerance: float) -> None:
        """`expected` is fp64, for the heads of queries and keys; values must be the same bits."""
        q, heads = self.heads, self.heads + self.kv_heads
        assert_close(self.qkv[:, :q], expected[:, :q], tolerance)
        stored = self.slots >= 0
        flat = self.cache.transpose(1, 2).flatten(0, 1)  # [slots, 2 * kv_heads, head_dim]
        found = flat[self.slots[stored].long()]
        assert_close(found[:, : self.kv_heads], expected[stored, q:heads], tolerance)
        assert torch.equal(found[:, self.kv_heads :], self.before[stored, heads:])
        unused = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
        unused[self.slots[stored].long()] = False
        assert flat[unused].isnan().all()

    def queries_and_keys(self) -> Tensor:
        return self.before[:, : self.heads + self.kv_heads].double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [
        (1, 32, 8, 128, 128),
        (67, 9, 3, 64, 64),  # three query heads to a key's
        (5, 32, 32, 80, 32),  # part of a head
        (6, 14, 2, 96, 24),  # accesses of 4
        (4, 8, 8, 80, 20),  # of 2
        (7, 3, 1, 72, 6),  # of 1
        (3, 71, 1, 64, 64),  # more heads than one block takes at once
        (9, 64, 8, 256, 64),
        (4, 5, 5, 8, 8),
        (3, 4, 2, 24, 22),
        (2, 128, 8, 256, 256),
        (3, 16, 2, 512, 512),
        (2, 5, 1, 264, 128),
    ],
)
def test_rotate_and_store(
    gpu: Gpu, dtype, n: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int
) -> None:
    case, table = Case(dtype, n, heads, kv_heads, head_dim), angles(rotary_dim)
    case.run(gpu, table)
    expected = rotated(case.queries_and_keys(), table, case.positions)
    case.check(expected, ROUNDING[dtype])
    assert torch.equal(case.qkv[:, :heads, rotary_dim:], case.before[:, :heads, rotary_dim:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [
        (1, 32, 8, 128, 128),
        (67, 9, 3, 64, 64),
        (5, 8, 2, 256, 256),
        (3, 6, 6, 128, 32),
        (4, 7, 1, 16, 6),
        (2, 5, 5, 64, 0),
        (3, 32, 4, 512, 512),
    ],
)
def test_head_norm(
    gpu: Gpu, dtype, n: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int
) -> None:
    case, make = Case(dtype, n, heads, kv_heads, head_dim), Inputs(head_dim, dtype)
    case.qkv[0] *= 100
    case.qkv[:, 1] /= 100  # so small that eps counts
    case.before = case.qkv.clone()
    norm = HeadNorm(make.normal(head_dim) / 4 + 1, make.normal(head_dim) / 4 + 1, 1e-4, 0.5)
    table = angles(rotary_dim) if rotary_dim else None
    case.run(gpu, table, norm=norm)
    x = case.queries_and_keys()
    x *= (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    x[:, :heads] *= norm.query.double() + norm.weight_offset
    x[:, heads:] *= norm.key.double() + norm.weight_offset
    case.check(x if table is None else rotated(x, table, case.positions), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [(1, 16, 2, 256, 64), (67, 9, 3, 64, 64), (5, 6, 2, 72, 6)],
)
def test_gates_between_queries_and_keys(
    gpu: Gpu, dtype, n: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int
) -> None:
    case, table = Case(dtype, n, heads, kv_heads, head_dim), angles(rotary_dim)
    gates = poisoned(n, heads, head_dim, dtype=dtype)
    queries, rest = case.qkv.tensor_split((heads,), 1)
    case.qkv = torch.cat([queries, gates, rest], 1)
    case.run(gpu, table, num_gate_heads=heads)
    assert case.qkv[:, heads : 2 * heads].isnan().all()
    expected = rotated(case.queries_and_keys(), table, case.positions)
    case.check(expected, ROUNDING[dtype])


def normalized(x: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys_as_values", [False, True])
@pytest.mark.parametrize("scheme", [None, "int8"])
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "head_dim"),
    [(1, 8, 1, 256), (67, 9, 3, 16), (5, 16, 2, 512), (3, 71, 5, 64)],
)
def test_norm_of_values(
    gpu: Gpu,
    dtype,
    keys_as_values: bool,
    scheme: str | None,
    n: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> None:
    if scheme is not None and dtype == torch.float32:
        pytest.skip("no quantized cache in fp32")
    case, make = Case(dtype, n, heads, kv_heads, head_dim), Inputs(head_dim, dtype)
    parts = case.qkv.split([heads, kv_heads, kv_heads], 1)
    if keys_as_values:
        case.qkv = torch.cat(parts[:2], 1)
        case.before = case.qkv.clone()
        parts = (*parts[:2], parts[1])
    q, k, v = (normalized(part.double(), 1e-4) for part in parts)
    norm = HeadNorm(make.normal(head_dim), make.normal(head_dim), 1e-4, values=True)
    table, scales, tolerance = angles(head_dim), None, ROUNDING[dtype]
    if scheme is not None:
        case.cache = torch.full(case.cache.shape, 99, dtype=torch.int8, device="cuda")
        scales = KVScales(scheme, poisoned(*case.cache.shape[:-1], dtype=torch.float32))
        tolerance += 2.0**-6
    case.run(gpu, table, norm=norm, keys_as_values=keys_as_values, kv_scales=scales)
    q = rotated(q * norm.query.double(), table, case.positions)
    k = rotated(k * norm.key.double(), table, case.positions)
    assert_close(case.qkv[:, :heads], q, ROUNDING[dtype])
    stored = case.slots >= 0
    found = case.cache.double()
    if scales is not None:
        found = found * scales.scales.double().unsqueeze(-1)
    rows = found.transpose(1, 2).flatten(0, 1)[case.slots[stored].long()]
    assert_close(rows[:, :kv_heads], k[stored], tolerance)
    assert_close(rows[:, kv_heads:], v[stored], tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "head_dim"), [(1, 8, 256), (67, 9, 16), (5, 16, 512)])
def test_queries_alone(gpu: Gpu, dtype, n: int, heads: int, head_dim: int) -> None:
    """Of a layer that reads another's keys and values: the cache stays as it is."""
    case, make = Case(dtype, n, heads, 1, head_dim), Inputs(head_dim, dtype)
    case.qkv = case.qkv[:, :heads].clone()
    case.kv_heads, before = 0, case.cache.clone()
    query, table = make.normal(head_dim), angles(head_dim)
    x = normalized(case.qkv.double(), 1e-4) * query.double()
    case.run(gpu, table, norm=HeadNorm(query, query, 1e-4, values=True))
    assert_close(case.qkv, rotated(x, table, case.positions), ROUNDING[dtype])
    assert torch.equal(case.cache.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "head_dim"), [(1, 32, 128), (67, 9, 64), (4, 3, 256)])
def test_head_norm_after_the_rotation(gpu: Gpu, dtype, n: int, heads: int, head_dim: int) -> None:
    case, make, table = (
        Case(dtype, n, heads, 1, head_dim),
        Inputs(head_dim, dtype),
        angles(head_dim),
    )
    norm = HeadNorm(make.normal(head_dim), make.normal(head_dim), 1e-4, after=True)
    case.run(gpu, table, norm=norm)
    x = rotated(case.queries_and_keys(), table, case.positions)
    x *= (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    x[:, :heads] *= norm.query.double()
    x[:, heads:] *= norm.key.double()
    case.check(x, ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [(1, 32, 8, 128, 128), (67, 9, 3, 64, 64), (5, 8, 2, 256, 32), (3, 5, 5, 64, 0)],
)
def test_query_factors(
    gpu: Gpu,
    dtype,
    normed: bool,
    n: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
) -> None:
    case, make = Case(dtype, n, heads, kv_heads, head_dim), Inputs(head_dim, dtype)
    table = angles(rotary_dim) if rotary_dim else None
    factors = 1 + torch.arange(POSITIONS, device="cuda").float().div(9).floor().log1p()
    norm = HeadNorm(make.normal(head_dim), make.normal(head_dim), 1e-4) if normed else None
    case.run(gpu, table, norm=norm, query_factors=factors)
    x = case.queries_and_keys()
    if norm is not None:
        x *= (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
        x[:, :heads] *= norm.query.double()
        x[:, heads:] *= norm.key.double()
    if table is not None:
        x = rotated(x, table, case.positions)
    x[:, :heads] *= factors.double()[case.positions.long()].view(-1, 1, 1)
    case.check(x, ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 8, 200])
def test_store_without_rotation(gpu: Gpu, dtype, head_dim: int) -> None:
    case = Case(dtype, 10, 12, 12, head_dim, block_size=4)
    case.run(gpu, None)
    case.check(case.queries_and_keys(), 0.0)
    assert torch.equal(case.qkv, case.before)


def test_cache_of_more_than_2_to_the_31_elements(gpu: Gpu) -> None:
    case = Case(torch.bfloat16, 2, 4, 2, 128, block_size=64)
    blocks = 2**31 // (4 * 64 * 128) + 2
    case.cache = torch.empty(blocks, 4, 64, 128, dtype=torch.bfloat16, device="cuda")
    case.slots[:] = torch.tensor([blocks * 64 - 1, 0])
    case.run(gpu, angles(128))
    expected = rotated(case.queries_and_keys(), angles(128), case.positions)
    for token, (block, place) in enumerate([(blocks - 1, 63), (0, 0)]):
        found = case.cache[block, :, place]
        assert_close(found[:2], expected[token, 4:], ROUNDING[torch.bfloat16])
        assert torch.equal(found[2:], case.before[token, 6:])


def test_wrong_arguments_raise(gpu: Gpu) -> None:
    case, table = Case(torch.float32, 4, 4, 2, 64), angles(64)
    for match, options in [
        ("rotary_dim", {"cos_sin": angles(64)[:, :63]}),
        ("cos_sin must be", {"cos_sin": table.double()}),
        ("query_factors must be", {"query_factors": table[:, 0].double()}),
    ]:
        with pytest.raises(ValueError, match=match):
            case.run(gpu, options.pop("cos_sin", table), **options)
    odd = Case(torch.float32, 4, 4, 2, 96)
    ones = torch.ones(96, device="cuda")
    with pytest.raises(ValueError, match="cannot be normalized"):
        odd.run(gpu, angles(96), norm=HeadNorm(ones, ones, 1e-6))
    with pytest.raises(ValueError, match="k_norm must be"):
        case.run(gpu, table, norm=HeadNorm(ones[:64].clone(), ones, 1e-6))
    case.heads = 5
    with pytest.raises(ValueError, match="8 heads, not 5"):
        case.run(gpu, table)
    with pytest.raises(ValueError, match="power of two"):
        Case(torch.float32, 4, 4, 2, 64, block_size=12).run(gpu, table)
    with pytest.raises(ValueError, match="multiple of 8"):
        Case(torch.float32, 4, 4, 2, 60).run(gpu, angles(60))


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256, 512])
@pytest.mark.parametrize("normed", [False, True])
def test_quantized_cache(gpu: Gpu, scheme: str, dtype, head_dim: int, normed: bool) -> None:
    """Compare with torch's quantization: values are bitwise equal.

    A rotated key may be rounded differently: the bound is half a step plus the rounding of the
    rotated head.
    """
    case = Case(dtype, 67, 6, 2, head_dim)
    case.qkv[5, -1] = 0
    case.qkv[7, -1, 3] = float("nan")
    case.before = case.qkv.clone()
    table, norm, heads = angles(head_dim), None, case.queries_and_keys()
    if normed:
        make = Inputs(9, dtype)
        norm = HeadNorm(make.normal(head_dim), make.normal(head_dim), 1e-5, 1.0)
        heads = heads * (heads.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        heads[:, :6] *= norm.query.double() + 1
        heads[:, 6:] *= norm.key.double() + 1
    values8 = torch.full(case.cache.shape, 99, dtype=torch.int8, device="cuda")
    scales = poisoned(*values8.shape[:-1], dtype=torch.float32)
    case.cache = values8
    case.run(gpu, table, norm=norm, kv_scales=KVScales(scheme, scales))
    stored = case.slots >= 0
    places = case.slots[stored].long()
    flat, by = values8.transpose(1, 2).flatten(0, 1), scales.transpose(1, 2).flatten(0, 1)
    expected = rotated(heads, table, case.positions)
    assert_close(case.qkv[:, :6], expected[:, :6], ROUNDING[dtype])

    # On the CPU, because torch on a GPU multiplies by a rounded inverse instead of dividing.
    whole, by_head = (t.cuda() for t in quantize_kv(scheme, case.before[stored, 8:].cpu()))
    finite = by_head.isfinite()
    assert not finite.all() and torch.equal(by[places, 2:].isfinite(), finite)
    assert torch.equal(by[places, 2:][finite], by_head[finite])
    assert torch.equal(flat[places, 2:][finite], whole[finite])

    keys, step = expected[stored, 6:8], by[places, :2].double().unsqueeze(-1)
    numbers = flat[places, :2] if scheme == "int8" else flat[places, :2].view(torch.float8_e4m3fn)
    half = step / 2 if scheme == "int8" else torch.maximum(keys.abs() / 15, step * 2**-10)
    bound = half + keys.abs().amax(-1, keepdim=True) * 2 * ROUNDING[dtype]
    assert ((numbers.double() * step - keys).abs() <= bound).all()
    unused = torch.ones(len(flat), dtype=torch.bool, device="cuda")
    unused[places] = False
    assert (flat[unused] == 99).all() and by[unused].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["rotary", "normed", "neither"])
def test_packed_cache(gpu: Gpu, dtype: torch.dtype, head_dim: int, kind: str) -> None:
    """Queries are rotated by the Hadamard matrix; keys and values as torch packs them.

    A value that is between two integers may go to the other one; so may keys, whose rotation is
    rounded to T before.
    """
    case = Case(dtype, 67, 6, 2, head_dim)
    case.qkv[5, -1] = 0
    case.qkv[7, -1, 3] = float("nan")
    case.before = case.qkv.clone()
    table, norm, heads = angles(head_dim), None, case.queries_and_keys()
    if kind == "normed":
        make = Inputs(9, dtype)
        norm = HeadNorm(make.normal(head_dim), make.normal(head_dim), 1e-5, 1.0)
        heads = heads * (heads.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        heads[:, :6] *= norm.query.double() + 1
        heads[:, 6:] *= norm.key.double() + 1
    by_angles = heads if kind == "neither" else rotated(heads, table, case.positions)
    num_blocks, twice_kv_heads, block_size, _ = case.cache.shape
    rows = (num_blocks, twice_kv_heads, block_size)
    values = torch.full((*rows, head_dim // 2), 99, dtype=torch.int8, device="cuda")
    bits = [
        torch.full((num_blocks, 2, block_size, size), 99, dtype=torch.int8, device="cuda")
        for size in (head_dim // 4, head_dim // 8)
    ]
    kv_scales = KVScales("int5", poisoned(*rows, dtype=torch.float32), *bits)
    case.cache = values
    case.run(gpu, None if kind == "neither" else table, norm=norm, kv_scales=kv_scales)
    assert_close(case.qkv[:, :6], by_angles[:, :6] @ hadamard_matrix(head_dim), 2 * ROUNDING[dtype])
    assert torch.equal(case.qkv[:, 6:].nan_to_num(9), case.before[:, 6:].nan_to_num(9))

    stored = case.slots >= 0
    places = case.slots[stored].long()
    tensors = (values, *bits, kv_scales.scales)
    flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in tensors]
    found = [tensor[places] for tensor in flat]
    new = torch.cat([by_angles[stored, 6:8].to(dtype), case.before[stored, 8:]], 1)
    expected = [tensor.cuda() for tensor in pack_kv(new.cpu())]
    finite = expected[3].isfinite()
    assert not finite.all() and torch.equal(found[3].isfinite(), finite)
    assert torch.equal(found[3][:, 2:][finite[:, 2:]], expected[3][:, 2:][finite[:, 2:]])
    one = torch.ones_like(expected[3])
    steps, wanted = (unpack_kv((*x[:3], one), torch.float32) for x in (found, expected))
    off = (steps - wanted)[finite].abs()
    assert off.max() <= 1 and (off > 0).float().mean() <= 0.02
    exact = (steps[:, 2:] != wanted[:, 2:])[finite[:, 2:]]
    assert exact.float().mean() <= 1e-3
    by = found[3].double().unsqueeze(-1)
    error = steps.double() * by - new.double() @ hadamard_matrix(head_dim)
    largest = (wanted * expected[3].unsqueeze(-1)).abs().amax(-1, keepdim=True).double()
    bound = by.abs() * 1.01 + 3 * ROUNDING[dtype] * largest
    assert (error.abs() <= bound)[finite].all()
    unused = torch.ones(len(flat[0]), dtype=torch.bool, device="cuda")
    unused[places] = False
    assert all((tensor[unused] == 99).all() for tensor in flat[:3])
    assert flat[3][unused].isnan().all()


def test_unsupported_head_dim_for_a_quantized_cache_raises(gpu: Gpu) -> None:
    case = Case(torch.bfloat16, 3, 2, 1, 80)
    case.cache = torch.zeros(case.cache.shape, dtype=torch.int8, device="cuda")
    scales = torch.zeros(case.cache.shape[:-1], device="cuda")
    with pytest.raises(ValueError, match="cannot be quantized"):
        case.run(gpu, angles(80), kv_scales=KVScales("int8", scales))
    case = Case(torch.bfloat16, 3, 2, 1, 64)
    case.cache = torch.zeros(3, 2, 16, 32, dtype=torch.int8, device="cuda")
    scales = torch.zeros(3, 2, 16, device="cuda")
    bits = [torch.zeros(3, 1, 16, size, dtype=torch.int8, device="cuda") for size in (16, 8)]
    with pytest.raises(ValueError, match="cannot be quantized"):
        case.run(gpu, angles(32), kv_scales=KVScales("int5", scales, *bits))
