"""Attention over the KV cache against torch in fp64."""

from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu.native import AttentionOp, KVFormat, OpHeader, RowSet
from swiftchat.engine.cpu.program import SpanRows
from swiftchat.engine.model.int5_kv import rotate_heads
from tests.support.cases import each_case
from tests.support.native.kv import NativeKV
from tests.support.native.libraries import VARIANT_NAMES
from tests.support.native.ops import each_variant, run_inputs, run_ops

TOKENS = OpHeader(row_set=RowSet.TOKENS)
# fp32 scores of a size of about 10 have errors of about 1e-6, and so have their exponentials.
TOLERANCE = 2e-5


@dataclass(frozen=True)
class SpanCase:
    num_rows: int
    context_len: int
    prefix_len: int = 0


@dataclass(frozen=True)
class Inputs:
    qkv: Tensor
    kv: NativeKV
    block_tables: list[Tensor]

    def first_span(self, num_rows: int) -> "Inputs":
        return Inputs(self.qkv[:num_rows], self.kv, self.block_tables[:1])

    def row(self, index: int) -> "Inputs":
        return Inputs(self.qkv[index : index + 1], self.kv, self.block_tables[:1])


@dataclass(frozen=True)
class Case:
    """Spans over a cache whose blocks are in random order; slots that hold no token are NaN."""

    spans: tuple[SpanCase, ...]
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 64
    kv: KVFormat = KVFormat.BF16
    window: int = 0
    softcap: float = 0.0
    has_slopes: bool = False
    has_sinks: bool = False
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(span.num_rows for span in self.spans)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def slopes(self) -> Tensor:
        return torch.logspace(-0.5, -2, self.num_heads)

    @property
    def sinks(self) -> Tensor:
        return torch.linspace(-3, 3, self.num_heads)

    def _block_tables(self) -> list[Tensor]:
        counts = [-(-span.context_len // self.block_size) for span in self.spans]
        generator = torch.Generator().manual_seed(self.seed)
        blocks = torch.randperm(sum(counts) + 2, generator=generator).to(torch.int32)
        return list(blocks[: sum(counts)].split(counts))

    def inputs(self) -> Inputs:
        generator = torch.Generator().manual_seed(self.seed)
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        qkv = 2 * torch.randn(self.num_tokens, width, generator=generator)
        tables = self._block_tables()
        num_blocks = sum(map(len, tables)) + 2
        heads = 2 * self.num_kv_heads
        kv = NativeKV.empty(self.kv, num_blocks, heads, self.block_size, self.head_dim)
        for span, table in zip(self.spans, tables, strict=True):
            rows = torch.randn(span.context_len, heads, self.head_dim, generator=generator)
            first = self._first_visible(span)
            kv.store(self._slots(table, span.context_len)[first:], rows[first:])
        return Inputs(qkv, kv, tables)

    def _first_visible(self, span: SpanCase) -> int:
        first = span.context_len - span.num_rows - self.window + 1
        return max(0, first) if self.window else 0

    def _slots(self, table: Tensor, context_len: int) -> list[int]:
        blocks = table.tolist()
        size = self.block_size
        return [blocks[i // size] * size + i % size for i in range(context_len)]

    def run(self, variant: str, num_threads: int = 2, inputs: Inputs | None = None) -> Tensor:
        inputs = inputs or self.inputs()
        slopes, sinks = self.slopes, self.sinks
        op = AttentionOp(
            header=TOKENS,
            qkv=0,
            out=1,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            window=self.window,
            scale=self.scale,
            softcap=self.softcap,
            slopes=slopes.data_ptr() if self.has_slopes else None,
            sinks=sinks.data_ptr() if self.has_sinks else None,
            cache=inputs.kv.struct,
        )
        spans, first_row = [], 0
        for span, table in zip(self.spans, inputs.block_tables, strict=True):
            spans.append(
                SpanRows(first_row, span.num_rows, span.context_len, span.prefix_len, table)
            )
            first_row += span.num_rows
        width = self.num_heads * self.head_dim
        widths = [(RowSet.TOKENS, inputs.qkv.shape[1]), (RowSet.TOKENS, width)]
        rows = run_inputs(self.num_tokens, spans=spans)
        return run_ops(variant, [op], widths, {0: inputs.qkv}, rows, num_threads)[1]

    def expected(self) -> Tensor:
        """The result in fp64."""
        inputs = self.inputs()
        heads = inputs.qkv.double().view(self.num_tokens, -1, self.head_dim)[:, : self.num_heads]
        rows = heads.split([span.num_rows for span in self.spans])
        parts = zip(rows, self.spans, inputs.block_tables, strict=True)
        return torch.cat(
            [self._expected_span(q, span, table, inputs.kv) for q, span, table in parts]
        )

    def _expected_span(self, q: Tensor, span: SpanCase, table: Tensor, kv: NativeKV) -> Tensor:
        context = kv.rows(self._slots(table, span.context_len)).transpose(0, 1)
        if kv.format == KVFormat.INT5:  # queries come rotated, and the output is not
            context[self.num_kv_heads :] = rotate_heads(context[self.num_kv_heads :].float())
        context[:, : self._first_visible(span)] = 0
        group = self.num_heads // self.num_kv_heads
        keys, values = (part.repeat_interleave(group, 0) for part in context.chunk(2))
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * self.scale
        if self.softcap:
            scores = (scores / self.softcap).tanh() * self.softcap
        tokens = torch.arange(span.context_len)
        positions = tokens[-span.num_rows :].unsqueeze(1)
        if self.has_slopes:
            scores = scores + self.slopes.double().view(-1, 1, 1) * (tokens - positions)
        mask = (tokens <= positions) | (tokens < span.prefix_len)
        if self.window:
            mask &= tokens > positions - self.window
        scores = scores.masked_fill(~mask, -torch.inf)
        if self.has_sinks:
            sinks = self.sinks.double().view(-1, 1, 1).expand(-1, span.num_rows, 1)
            probabilities = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            probabilities = scores.softmax(-1)
        return (probabilities @ values).transpose(0, 1).reshape(span.num_rows, -1)

    def check(self, variant: str) -> None:
        found = self.run(variant).double()
        torch.testing.assert_close(found, expected(self), rtol=TOLERANCE, atol=TOLERANCE)


@lru_cache(maxsize=4)
def expected(case: Case) -> Tensor:
    """Return the result in fp64, which is the same for all variants of the kernels."""
    return case.expected()


def one(num_rows: int, context_len: int, prefix_len: int = 0) -> tuple[SpanCase, ...]:
    return (SpanCase(num_rows, context_len, prefix_len),)


DECODE = one(1, 600)
PREFILL = one(150, 290)
MIXED = (SpanCase(1, 700), SpanCase(70, 70), SpanCase(2, 65), SpanCase(9, 300), SpanCase(1, 1))
CASES = {
    "first token": Case(one(1, 1)),
    "decode": Case(DECODE),
    "decode, unaligned": Case(one(1, 301), block_size=7),
    "decode, three rows": Case(one(3, 514)),
    "decode, many rows": Case(tuple(SpanCase(1, 20 * i + 1) for i in range(40))),
    "decode, long": Case(one(1, 17_000), num_heads=2, num_kv_heads=1, head_dim=16),
    "prefill": Case(PREFILL),
    "prefill, whole": Case(one(333, 333)),
    "prefill, short": Case(one(11, 11)),
    "prefill, block_size 7": Case(PREFILL, block_size=7),
    "mixed": Case(MIXED),
    "prefix": Case(one(100, 100, 70)),
    "prefix, after it": Case(one(50, 150, 70)),
    "prefix in two parts": Case(one(30, 90, 75)),
    "prefix, decode": Case(one(2, 10, 10)),
    **{
        f"{name}, {option}": case
        for name, spans in {"decode": DECODE, "prefill": PREFILL, "mixed": MIXED}.items()
        for option, case in {
            "window": Case(spans, window=100),
            "softcap": Case(spans, softcap=5.0),
            "has_slopes": Case(spans, has_slopes=True),
            "has_sinks": Case(spans, has_sinks=True),
        }.items()
    },
    "window of 1": Case(MIXED, window=1),
    "window and prefix": Case(one(100, 100, 70), window=40),
    "window, far": Case(one(20, 900), window=64, has_sinks=True),
    "all options": Case(MIXED, window=90, softcap=9.0, has_slopes=True, has_sinks=True),
}


@each_variant
@each_case("name", CASES)
def test_cases(variant: str, name: str) -> None:
    CASES[name].check(variant)


@each_variant
@pytest.mark.parametrize("kv", KVFormat)
@pytest.mark.parametrize("spans", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize("head_dim", [64, 50])
def test_formats(variant: str, kv: KVFormat, spans: tuple[SpanCase, ...], head_dim: int) -> None:
    head_dim = 40 if (kv, head_dim) == (KVFormat.INT5, 50) else head_dim  # a multiple of 8
    Case(spans, kv=kv, head_dim=head_dim).check(variant)
    Case(spans, kv=kv, head_dim=head_dim, block_size=7, window=100).check(variant)


@each_variant
@pytest.mark.parametrize("spans", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize("head_dim", [2, 6, 8, 36, 80, 96, 128, 192, 256, 512])
def test_head_dims(variant: str, spans: tuple[SpanCase, ...], head_dim: int) -> None:
    Case(spans, head_dim=head_dim, num_heads=4).check(variant)


@each_variant
@pytest.mark.parametrize("spans", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    "heads", [(1, 1), (3, 3), (4, 2), (9, 3), (4, 1), (10, 2), (6, 1), (14, 2), (8, 1), (71, 1)]
)
def test_heads(variant: str, spans: tuple[SpanCase, ...], heads: tuple[int, int]) -> None:
    Case(spans, num_heads=heads[0], num_kv_heads=heads[1], head_dim=32).check(variant)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_batches(data: st.DataObject) -> None:
    spans = []
    for _ in range(data.draw(st.integers(1, 4))):
        num_rows = data.draw(st.sampled_from([1, 1, 2, 7, 8, 9, 17, 60]))
        context_len = num_rows + data.draw(st.sampled_from([0, 0, 1, 40, 64, 250, 513]))
        prefix_len = data.draw(st.sampled_from([0, 0, context_len // 2]))
        spans.append(SpanCase(num_rows, context_len, prefix_len))
    kv = data.draw(st.sampled_from(list(KVFormat)))
    group, num_kv_heads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    case = Case(
        tuple(spans),
        num_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=(8 if kv == KVFormat.INT5 else 2) * data.draw(st.integers(1, 12)),
        block_size=data.draw(st.sampled_from([1, 5, 16, 64, 100])),
        kv=kv,
        window=data.draw(st.sampled_from([0, 0, 3, 70])),
        softcap=data.draw(st.sampled_from([0.0, 4.0])),
        has_slopes=data.draw(st.booleans()),
        has_sinks=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 99)),
    )
    for variant in ("plain", "avx2"):
        case.check(variant)


@each_variant
@each_case("num_threads", [1, 3, 8])
def test_threads(variant: str, num_threads: int) -> None:
    # The order of a row's sums does not depend on who computes them.
    assert torch.equal(Case(MIXED).run(variant, num_threads), Case(MIXED).run(variant))


@each_variant
@each_case("span", [SpanCase(1, 800), SpanCase(2, 300), SpanCase(90, 200)])
def test_rows_do_not_depend_on_other_rows(variant: str, span: SpanCase) -> None:
    # With 40 more decode rows contexts are not split, and with more queries tiles are larger.
    others = tuple(SpanCase(1, 30) for _ in range(40))
    case = Case((span, *others))
    inputs = case.inputs()
    alone = Case((span,)).run(variant, inputs=inputs.first_span(span.num_rows))
    assert torch.equal(alone, case.run(variant, inputs=inputs)[: span.num_rows])


SAME = {
    "short": Case(one(60, 320)),
    "few rows": Case(one(8, 130)),
    "whole": Case(one(140, 140), block_size=7, head_dim=50),
    "options": Case(one(40, 300), softcap=4.0, has_slopes=True, has_sinks=True, head_dim=36),
    "window": Case(one(90, 400), window=70, block_size=100),
    "window of several units": Case(one(12, 700), window=300),
    "prefix": Case(one(100, 400, 333)),
    "splits of several units": Case(one(20, 6000), num_heads=2, num_kv_heads=1, head_dim=16),
    "window over splits": Case(one(20, 5400), num_heads=3, num_kv_heads=1, head_dim=16, window=900),
    **{f"cache {kv.name}": Case(one(30, 200), kv=kv, head_dim=40) for kv in KVFormat},
}


@each_variant
@each_case("name", SAME)
def test_prefill_and_decode_give_the_same_bits(variant: str, name: str) -> None:
    case = SAME[name]
    (span,) = case.spans
    inputs = case.inputs()
    together = case.run(variant, inputs=inputs)
    for index in {0, span.num_rows // 2, span.num_rows - 1}:
        context_len = span.context_len - span.num_rows + index + 1
        alone = replace(case, spans=one(1, max(context_len, span.prefix_len), span.prefix_len))
        if context_len < span.prefix_len:  # as the last row it would see other tokens
            continue
        assert torch.equal(alone.run(variant, inputs=inputs.row(index))[0], together[index])


@pytest.mark.parametrize("variant", VARIANT_NAMES[2:])
@each_case("name", SAME)
def test_widths_of_vectors_give_the_same_bits(variant: str, name: str) -> None:
    """But those of the first variant, which rounds products before it adds them."""
    assert torch.equal(SAME[name].run(variant), SAME[name].run(VARIANT_NAMES[1]))


@each_variant
@each_case("num_rows", [1, 40])
@each_case("kv", KVFormat)
def test_nan_stays_visible(variant: str, num_rows: int, kv: KVFormat) -> None:
    case = Case(one(num_rows, 100), kv=kv)
    inputs = case.inputs()
    # All rows see the first token.
    slot = int(inputs.block_tables[0][0]) * case.block_size
    inputs.kv.store([slot], torch.full((1, 2 * case.num_kv_heads, case.head_dim), torch.nan))
    assert case.run(variant, inputs=inputs).isnan().all()
