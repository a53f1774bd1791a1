"""Head norms, rotation and the write to the KV cache against torch in fp64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import KVFormat, Norm, NormKind, OpHeader, RotaryOp, RowSet
from swiftchat.engine.model.int5_kv import rotate_heads
from tests.support.cases import each_case
from tests.support.native.kv import NativeKV
from tests.support.native.ops import each_variant, norm, run_inputs, run_ops

TOKENS = OpHeader(row_set=RowSet.TOKENS)
EPS = 1e-5
NUM_POSITIONS = 100


@dataclass(frozen=True)
class Case:
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    num_rows: int = 3
    block_size: int = 16
    kv: KVFormat = KVFormat.F32
    kind: NormKind = NormKind.NONE
    is_whole: bool = False
    has_bias: bool = False
    rotated: bool = True
    two_dimensional: bool = False
    norm_after: bool = False
    scaled: bool = False
    value_norm: bool = False
    values_are_keys: bool = False

    @property
    def width(self) -> int:
        kv_heads = (1 if self.values_are_keys else 2) * self.num_kv_heads
        return (self.num_heads + kv_heads) * self.head_dim

    @property
    def num_blocks(self) -> int:
        return 3 + self.num_rows // self.block_size * 2

    def run(self, variant: str, qkv: Tensor, num_threads: int = 2) -> tuple[Tensor, NativeKV]:
        """Return qkv and the cache afterwards."""
        heads = 2 * self.num_kv_heads
        kv = NativeKV.empty(self.kv, self.num_blocks, heads, self.block_size, self.head_dim)
        weights, biases = self.weights, self.biases
        no_norm = Norm(NormKind.NONE, 0.0, None, None)
        q_norm, k_norm = (
            no_norm
            if self.kind == NormKind.NONE
            else norm(self.kind, weight, bias if self.has_bias else None, EPS)
            for weight, bias in zip(weights, biases, strict=True)
        )
        table, factors = self.cos_sin.float(), self.factors
        ones = torch.ones(self.head_dim)
        v_norm = norm(NormKind.RMS, ones, None, EPS) if self.value_norm else no_norm
        op = RotaryOp(
            header=TOKENS,
            qkv=0,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            norm_width=self.num_heads * self.head_dim if self.is_whole else self.head_dim,
            two_dimensional=self.two_dimensional,
            num_positions=NUM_POSITIONS,
            q_norm=q_norm,
            k_norm=k_norm,
            norm_after=self.norm_after,
            cos_sin=table.data_ptr() if self.rotated else None,
            query_factors=factors.data_ptr() if self.scaled else None,
            values_are_keys=self.values_are_keys,
            v_norm=v_norm,
            cache=kv.struct,
        )
        inputs = run_inputs(
            self.num_rows,
            positions=self.positions[0],
            second_positions=self.positions[1] if self.two_dimensional else None,
            slots=self.slots,
        )
        widths = [(RowSet.TOKENS, self.width)]
        return run_ops(variant, [op], widths, {0: qkv}, inputs, num_threads)[0], kv

    @property
    def weights(self) -> list[Tensor]:
        return [_random(n * self.head_dim, n) for n in (self.num_heads, self.num_kv_heads)]

    @property
    def biases(self) -> list[Tensor]:
        return [_random(n * self.head_dim, n + 9) for n in (self.num_heads, self.num_kv_heads)]

    @property
    def cos_sin(self) -> Tensor:
        """fp32 values as fp64."""
        angles = 7 * _random(NUM_POSITIONS * self.head_dim // 2, 5).double()
        angles = angles.view(NUM_POSITIONS, -1)
        return torch.cat([angles.cos(), angles.sin()], 1).float().double()

    @property
    def factors(self) -> Tensor:
        return 1 + _random(NUM_POSITIONS, 6)

    @property
    def positions(self) -> tuple[list[int], list[int]]:
        rows = range(self.num_rows)
        return [(7 * i + 3) % NUM_POSITIONS for i in rows], [(31 * i + 1) % 50 for i in rows]

    @property
    def slots(self) -> list[int]:
        order = torch.randperm(self.num_blocks * self.block_size, generator=_generator(4))
        return order[: self.num_rows].tolist()

    def expected(self, qkv: Tensor) -> Tensor:
        """qkv afterwards, in fp64."""
        heads = qkv.double().view(self.num_rows, -1, self.head_dim)
        q, k, v = heads.tensor_split((self.num_heads, self.num_heads + self.num_kv_heads), 1)
        if not self.norm_after:
            q, k = self._norms(q, k)
        if self.rotated:
            first, second = (self.cos_sin[torch.tensor(p)] for p in self.positions)
            if self.two_dimensional:
                pairs = torch.arange(self.head_dim) % (self.head_dim // 2)
                first = torch.where(pairs < self.head_dim // 4, first, second)
            q, k = _rotate(q, first), _rotate(k, first)
        if self.norm_after:
            q, k = self._norms(q, k)
        if self.scaled:
            q = q * self.factors.double()[torch.tensor(self.positions[0])].view(-1, 1, 1)
        return torch.cat([q, k, v], 1).view(self.num_rows, -1)

    def _norms(self, q: Tensor, k: Tensor) -> list[Tensor]:
        parts = zip((q, k), self.weights, self.biases, strict=True)
        return [self._norm(part, weight, bias) for part, weight, bias in parts]

    def _norm(self, heads: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.kind == NormKind.NONE or not heads.shape[1]:
            return heads
        groups = 1 if self.is_whole else heads.shape[1]
        x = heads.reshape(len(heads), groups, -1)
        if self.kind == NormKind.LAYER:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double().view(groups, -1)
        if self.has_bias:
            x = x + bias.double().view(groups, -1)
        return x.reshape(heads.shape)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _random(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=_generator(seed))


def _rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    cos, sin = cos_sin.unsqueeze(1).chunk(2, -1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


CASES = {
    "plain": Case(),
    "one row": Case(num_rows=1),
    "many rows": Case(num_rows=150),
    "no rotation": Case(rotated=False),
    "two-dimensional": Case(two_dimensional=True, head_dim=40),
    "rms": Case(kind=NormKind.RMS),
    "rms, whole": Case(kind=NormKind.RMS, is_whole=True, num_rows=33),
    "rms, whole, wide": Case(kind=NormKind.RMS, is_whole=True, num_heads=40, head_dim=128),
    "rms, after the rotation": Case(kind=NormKind.RMS, norm_after=True),
    "scaled queries": Case(scaled=True, num_rows=40),
    "scaled queries, no rotation": Case(scaled=True, rotated=False),
    "scaled queries, two-dimensional": Case(scaled=True, two_dimensional=True, head_dim=40),
    "layer": Case(kind=NormKind.LAYER, head_dim=30),
    "layer, bias": Case(kind=NormKind.LAYER, has_bias=True),
    "layer, whole, bias": Case(kind=NormKind.LAYER, is_whole=True, has_bias=True),
    "one head": Case(num_heads=1, num_kv_heads=1, head_dim=6, kind=NormKind.RMS),
    "head_dim 2": Case(head_dim=2, num_rows=5),
    "head_dim 512": Case(head_dim=512, num_rows=9, kind=NormKind.RMS),
    "block_size 7": Case(block_size=7, num_rows=20),
}


@each_variant
@each_case("name", CASES)
def test_norms_and_rotation(variant: str, name: str) -> None:
    case = CASES[name]
    qkv = _random(case.num_rows * case.width, 1).view(case.num_rows, -1)
    found, kv = case.run(variant, qkv)
    # Each element is a product of a few factors, rounded a few times, and a sum of two of them.
    torch.testing.assert_close(found.double(), case.expected(qkv), rtol=1e-5, atol=1e-5)
    stored = found.view(case.num_rows, -1, case.head_dim)[:, case.num_heads :]
    assert torch.equal(kv.rows(case.slots), stored.double())
    unused = set(range(case.num_blocks * case.block_size)) - set(case.slots)
    assert kv.rows(sorted(unused)).isnan().all()


@each_variant
@each_case("values_are_keys", [False, True])
@each_case("num_rows", [1, 70])
def test_normalized_values(variant: str, values_are_keys: bool, num_rows: int) -> None:
    case = Case(
        kind=NormKind.RMS, value_norm=True, values_are_keys=values_are_keys, num_rows=num_rows
    )
    qkv = _random(num_rows * case.width, 1).view(num_rows, -1)
    heads = qkv.view(num_rows, -1, case.head_dim)
    values = heads[:, -case.num_kv_heads :].double().clone()
    values /= (values.square().mean(-1, keepdim=True) + EPS).sqrt()
    expected = case.expected(qkv).view(heads.shape)
    keys = expected[:, case.num_heads : case.num_heads + case.num_kv_heads]
    found, kv = case.run(variant, qkv)
    stored = kv.rows(case.slots)
    torch.testing.assert_close(stored, torch.cat([keys, values], 1), rtol=1e-5, atol=1e-5)
    queries = found.view(heads.shape)[:, : case.num_heads].double()
    torch.testing.assert_close(queries, expected[:, : case.num_heads], rtol=1e-5, atol=1e-5)


@each_variant
def test_queries_alone(variant: str) -> None:
    """A layer that reads the cache of another one."""
    case = Case(kind=NormKind.RMS, num_kv_heads=0)
    qkv = _random(case.num_rows * case.width, 1).view(case.num_rows, -1)
    found, _ = case.run(variant, qkv)
    torch.testing.assert_close(found.double(), case.expected(qkv), rtol=1e-5, atol=1e-5)


@each_variant
@each_case("kv", [kv for kv in KVFormat if kv != KVFormat.INT5])
@each_case("head_dim", [64, 50])
def test_stored_values(variant: str, kv: KVFormat, head_dim: int) -> None:
    # Bitwise equal to torch's conversions and to `quantize_kv`: both round to the nearest.
    case = Case(kv=kv, head_dim=head_dim, num_rows=70, rotated=False)
    qkv = _random(case.num_rows * case.width, 2).view(case.num_rows, -1)
    magnitudes = torch.logspace(-42, 4, case.num_rows).unsqueeze(1)
    qkv[:, ::3] *= magnitudes
    qkv[0] = 0
    qkv[1, ::2] = 0
    found, written = case.run(variant, qkv)
    assert torch.equal(found, qkv)
    expected = NativeKV.empty(kv, case.num_blocks, 2 * case.num_kv_heads, case.block_size, head_dim)
    expected.store(case.slots, qkv.view(case.num_rows, -1, head_dim)[:, case.num_heads :])
    assert _bits(written.values).equal(_bits(expected.values))
    if written.scales is not None and expected.scales is not None:
        assert _bits(written.scales).equal(_bits(expected.scales))


@each_variant
@each_case("head_dim", [8, 64, 80, 128])
def test_packed_rows(variant: str, head_dim: int) -> None:
    """Bitwise equal to `rotate_heads` and `pack_kv`."""
    case = Case(kv=KVFormat.INT5, head_dim=head_dim, num_rows=70, rotated=False)
    qkv = _random(case.num_rows * case.width, 2).view(case.num_rows, -1)
    qkv[:, ::3] *= torch.logspace(-42, 4, case.num_rows).unsqueeze(1)
    qkv[0] = 0
    found, written = case.run(variant, qkv.clone())
    heads = qkv.view(case.num_rows, -1, head_dim)
    queries = found.view(heads.shape)[:, : case.num_heads]
    assert torch.equal(queries, rotate_heads(heads[:, : case.num_heads]))
    expected = NativeKV.empty(
        case.kv, case.num_blocks, 2 * case.num_kv_heads, case.block_size, head_dim
    )
    expected.store(case.slots, heads[:, case.num_heads :])
    assert written.scales is not None and expected.scales is not None
    assert _bits(written.scales).equal(_bits(expected.scales))
    for one, other in zip(
        (written.values, *written.bits), (expected.values, *expected.bits), strict=True
    ):
        assert torch.equal(one, other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int8)


@each_variant
@each_case("kv", KVFormat)
@each_case("value", [torch.inf, -torch.inf, torch.nan])
def test_rows_that_are_not_finite(variant: str, kv: KVFormat, value: float) -> None:
    case = Case(kv=kv, num_rows=2, rotated=False)
    qkv = _random(case.num_rows * case.width, 3).view(case.num_rows, -1)
    qkv[0, -1] = value
    rows = case.run(variant, qkv)[1].rows(case.slots)
    assert not rows[0, -1].isfinite().all()
    assert rows[0, :-1].isfinite().all()
    assert rows[1].isfinite().all()


@each_variant
@each_case("num_threads", [1, 3])
def test_threads(variant: str, num_threads: int) -> None:
    case = Case(kind=NormKind.RMS, num_rows=40)
    qkv = _random(case.num_rows * case.width, 1).view(case.num_rows, -1)
    expected, expected_kv = case.run(variant, qkv)
    found, kv = case.run(variant, qkv, num_threads)
    assert torch.equal(found, expected)
    assert torch.equal(kv.rows(case.slots), expected_kv.rows(case.slots))
