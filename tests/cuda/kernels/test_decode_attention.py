"""decode_attention against fp64. Tolerance: weights and results are rounded once each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_attention import (
    Layout,
    decode_attention,
    decode_attention_workspace,
)
from swiftchat.cuda.quantized_kv import KV_SCHEMES, PACKED_HEAD_DIMS, KVScales
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.case import (
    DTYPES,
    ROUNDING,
    Inputs,
    assert_close,
    hadamard_matrix,
    poisoned,
    quantize_cache,
)

pytestmark = pytest.mark.gpu
MIXED = (1, 2, 63, 64, 65, 0, 200, 128, 1000, 129, 5000)
GARBAGE = 2**31 - 9  # an invalid entry of a block table

SCHEME_DIMS = [
    (scheme, head_dim)
    for scheme in KV_SCHEMES
    for head_dim in (16, 48, 64, 80, 96, 128, 208, 256, 320, 512)
    if scheme != "int5" or head_dim in PACKED_HEAD_DIMS
]


@pytest.fixture(scope="module", autouse=True)
def _compiled(gpu: Gpu) -> None:
    """Compile all kernels of this file on all cores."""
    gpu.compile(
        _spec(Layout.of(dtype, head_dim, group, gpu.block_shared_bytes))
        for dtype in DTYPES
        for head_dim in (64, 80, 96, 128, 256, 512)
        for group in (4, 16)
    )
    gpu.compile(
        _spec(Layout.of(dtype, head_dim, group, gpu.block_shared_bytes, scheme))
        for scheme, head_dim in SCHEME_DIMS
        for dtype in (torch.bfloat16, torch.float16)
        for group in (4, 16)
    )


def _spec(layout: Layout) -> KernelSpec:
    return KernelSpec.of("decode_attention", **layout.macros)


@dataclass
class Case:
    """Random sequences in scattered blocks; NaN in every slot that must not be read."""

    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    cache: Tensor
    tables: Tensor
    lengths: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, gpu: Gpu) -> Tensor:
        out = poisoned(*self.q.shape, dtype=self.q.dtype)
        workspace = decode_attention_workspace(gpu, *self.q.shape)
        decode_attention(
            gpu,
            self.q,
            self.cache,
            block_tables=self.tables,
            context_lens=self.lengths,
            scale=self.scale,
            out=out,
            workspace=workspace,
            **self.options,
        )
        assert (workspace.view(torch.int32) == -1).all()
        return out

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1]) ** -0.5

    def expected(self) -> Tensor:
        rows = [self._attend(i) for i in range(len(self.keys))]
        return torch.stack(rows)

    def _attend(self, index: int) -> Tensor:
        q, keys, values = self.q[index].double(), self.keys[index], self.values[index]
        length, kv_heads, head_dim = keys.shape
        if length == 0:
            return torch.zeros_like(q)
        grouped = q.view(kv_heads, -1, head_dim)
        scores = torch.einsum("hgd,thd->hgt", grouped, keys.double()) * self.scale
        distance = torch.arange(1 - length, 1, device="cuda")
        if cap := self.options.get("softcap"):
            scores = cap * (scores / cap).tanh()
        if (slopes := self.options.get("alibi_slopes")) is not None:
            scores += slopes.double().view(kv_heads, -1, 1) * distance
        scores[..., : first_visible(length, self.options)] = -torch.inf
        if (sinks := self.options.get("sinks")) is not None:
            sinks = sinks.double().view(kv_heads, -1, 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., :length]
        return torch.einsum("hgt,thd->hgd", weights, values.double()).reshape(q.shape)


def first_visible(length: int, options: Mapping[str, Any]) -> int:
    """Return the first token that the query of a sequence sees."""
    first = max(0, min(options.get("first_key", 0), length - 1))
    if window := options.get("window"):
        first = max(first, length - window)
    if chunk := options.get("chunk"):
        first = max(first, (length - 1) // chunk * chunk)
    return first


def make_case(
    dtype: torch.dtype,
    lengths: Sequence[int],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int = 16,
    **options: Any,
) -> Case:
    make = Inputs(sum(lengths) + head_dim, dtype)
    counts = [-(-length // block_size) for length in lengths]
    blocks = make.permutation(sum(counts) + 3).long().split([*counts, 3])
    cache = poisoned(sum(counts) + 3, 2 * kv_heads, block_size, head_dim, dtype=dtype)
    tables = torch.full((len(lengths), max(counts) + 2), GARBAGE, dtype=torch.int32, device="cuda")
    keys, values = [], []
    for row, (length, mine) in enumerate(zip(lengths, blocks, strict=False)):
        tokens = make.normal(length, 2 * kv_heads, head_dim)
        first = first_visible(length, options)
        tables[row, first // block_size : len(mine)] = mine[first // block_size :]
        places = torch.arange(first, length, device="cuda")
        cache[mine[places // block_size], :, places % block_size] = tokens[first:]
        keys.append(tokens[:, :kv_heads])
        values.append(tokens[:, kv_heads:])
    # Queries are the first part of wider rows.
    rows = poisoned(len(lengths), kv_heads * (group + 2), head_dim, dtype=dtype)
    q = rows[:, : kv_heads * group]
    q.copy_(make.normal(*q.shape))
    where = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return Case(q, keys, values, cache, tables, where, options)


def quantized(case: Case, scheme: str) -> Case:
    """Quantize the cache; slots that must not be read get the largest value and a NaN scale.

    Rows differ in size, so that using another row's scale gives a wrong result. The kernel rotates
    the output of int5 back, but takes rotated queries.
    """
    num_blocks, heads, block_size, head_dim = case.cache.shape
    sizes = 2.0 ** Inputs(head_dim).integers(-6, 3, num_blocks, heads, block_size, 1)
    case.cache, kv_scales, numbers = quantize_cache(scheme, case.cache * sizes.to(case.cache.dtype))
    if scheme == "int5":
        numbers[:, heads // 2 :] @= hadamard_matrix(head_dim)
    for row, length in enumerate(case.lengths.tolist()):
        first = first_visible(length, case.options)
        places = torch.arange(first, length, device="cuda")
        blocks = case.tables[row].long()[places // block_size]
        read = numbers[blocks, :, places % block_size]
        case.keys[row] = torch.zeros(length, heads // 2, head_dim, device="cuda").double()
        case.values[row] = case.keys[row].clone()
        case.keys[row][first:], case.values[row][first:] = read.tensor_split(2, dim=1)
    case.options["kv_scales"] = kv_scales
    return case


@pytest.mark.parametrize(("scheme", "head_dim"), SCHEME_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quantized_cache(gpu: Gpu, scheme: str, dtype, head_dim: int) -> None:
    for group in (1, 7, 16):
        case = quantized(make_case(dtype, MIXED, 2, group, head_dim), scheme)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("scheme", KV_SCHEMES)
@pytest.mark.parametrize("block_size", [4, 8, 16, 64, 256])
def test_quantized_cache_block_sizes(gpu: Gpu, scheme: str, block_size: int) -> None:
    slopes = Inputs(3).normal(8).abs() / 50
    capped = {"window": 130, "softcap": 2.0, "alibi_slopes": slopes}
    for options in ({}, {"window": 5}, {"chunk": 65}, capped):
        case = quantized(make_case(torch.bfloat16, MIXED, 2, 4, 64, block_size, **options), scheme)
        assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_quantized_cache_with_sinks(gpu: Gpu, scheme: str) -> None:
    case = make_case(torch.bfloat16, MIXED, 2, 8, 64, sinks=Inputs(7).normal(16), window=130)
    case = quantized(case, scheme)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("scheme", KV_SCHEMES)
@pytest.mark.parametrize("length", [1, 16, 17, 129, 2113, 20_001])
def test_quantized_cache_split_over_all_multiprocessors(gpu: Gpu, scheme: str, length: int) -> None:
    for num_seqs in (1, gpu.num_sms // 4):
        lengths = [length] + [3] * (num_seqs - 1)
        case = quantized(make_case(torch.bfloat16, lengths, 8, 4, 128, 64), scheme)
        assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_quantized_cache_with_subnormal_fp16_scales(gpu: Gpu, scheme: str) -> None:
    """The scales are subnormal in fp16."""
    case = make_case(torch.float16, MIXED, 2, 4, 64)
    case.cache[:, 2:] *= 2.0**-9
    case = quantized(case, scheme)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.float16])


def test_wrong_kv_scales_raise(gpu: Gpu) -> None:
    case = quantized(make_case(torch.bfloat16, (5,), 2, 4, 64), "int8")
    good = case.options["kv_scales"]
    for wrong, match in (
        (None, "cache must be"),
        (KVScales("int3", good.scales), "int3"),
        (KVScales("int5", good.scales), "key_bits must be"),
        (KVScales("int8", good.scales[:, :1]), "scales must be"),
    ):
        case.options["kv_scales"] = wrong
        with pytest.raises(ValueError, match=match):
            case.run(gpu)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 16, 20])
def test_group(gpu: Gpu, dtype, group: int) -> None:
    case = make_case(dtype, MIXED, 2, group, 64)
    assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 16, 40, 80, 88, 96, 128, 200, 256, 264, 512])
def test_head_dim(gpu: Gpu, dtype, head_dim: int) -> None:
    case = make_case(dtype, MIXED, 3, 4, head_dim)
    assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256, 512])
def test_large_group_of_each_head_dim(gpu: Gpu, head_dim: int) -> None:
    case = make_case(torch.bfloat16, MIXED, 1, 13, head_dim)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("head_dim", [64, 72])
@pytest.mark.parametrize("block_size", [4, 8, 16, 32, 64, 256])
def test_block_size(gpu: Gpu, block_size: int, head_dim: int) -> None:
    case = make_case(torch.float16, MIXED, 2, 4, head_dim, block_size)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.float16])


@pytest.mark.parametrize("length", [1, 16, 17, 127, 128, 129, 2111, 2113, 20_001])
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_one_sequence_over_all_multiprocessors(gpu: Gpu, length: int, kv_heads: int) -> None:
    for block_size in (4, 64):
        case = make_case(torch.bfloat16, [length], kv_heads, 4, 128, block_size)
        assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 17, 129, 2113, 20_001])
def test_one_sequence_with_widest_heads(gpu: Gpu, dtype, length: int) -> None:
    """Two warps a block, or one with little shared memory, and up to all splits."""
    for kv_heads, options in ((1, {}), (2, {"window": 600}), (4, {"softcap": 30.0})):
        case = make_case(dtype, [length], kv_heads, 8, 512, 64, **options)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [256, 512])
def test_wide_heads_with_little_shared_memory(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, dtype, head_dim: int
) -> None:
    monkeypatch.setattr(gpu, "block_shared_bytes", 99 * 1024)
    monkeypatch.setattr(gpu, "sm_shared_bytes", 100 * 1024)
    for lengths in (MIXED, (3001,)):
        case = make_case(dtype, lengths, 2, 4, head_dim)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("head_dim", [64, 256, 512])
@pytest.mark.parametrize("num_seqs", [3, 16, 17, 40, 70])
def test_many_sequences(gpu: Gpu, num_seqs: int, head_dim: int) -> None:
    lengths = [(37 * i * i) % 700 for i in range(num_seqs)]
    case = make_case(torch.bfloat16, lengths, 8, 4, head_dim)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("group", [4, 16])
@pytest.mark.parametrize("length", [4097, 9001, 9217])
def test_a_long_sequence_among_many(gpu: Gpu, length: int, group: int) -> None:
    """With so many sequences none is split; a warp has many steps, an odd or an even number."""
    num_seqs = 2 * gpu.num_sms // 8 + 1
    for block_size in (4, 64):
        case = make_case(torch.bfloat16, [*[3] * num_seqs, length], 8, group, 64, block_size)
        assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [4, 64])
@pytest.mark.parametrize("window", [1, 5, 64, 130, 1500])
def test_window(gpu: Gpu, dtype, window: int, block_size: int) -> None:
    case = make_case(dtype, MIXED, 2, 4, 64, block_size, window=window)
    assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [4, 64])
@pytest.mark.parametrize("chunk", [1, 5, 64, 130, 1500, 8192])
def test_chunk(gpu: Gpu, dtype, chunk: int, block_size: int) -> None:
    """Only tokens from the last multiple of `chunk` on: a query at one sees itself."""
    for options in ({}, {"window": 40}):
        case = make_case(dtype, MIXED, 2, 5, 64, block_size, chunk=chunk, **options)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [4, 64])
@pytest.mark.parametrize("first_key", [1, 3, 64, 200])
def test_first_key(gpu: Gpu, dtype, first_key: int, block_size: int) -> None:
    """A query before the first key sees itself."""
    for options in ({}, {"window": 40}, {"chunk": 64}):
        case = make_case(dtype, MIXED, 2, 5, 64, block_size, first_key=first_key, **options)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("length", [8191, 8192, 8193, 20_001])
def test_chunk_of_a_split_sequence(gpu: Gpu, length: int) -> None:
    case = make_case(torch.bfloat16, [length], 8, 5, 128, 64, chunk=8192)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [4, 16])
def test_softcap_and_alibi(gpu: Gpu, dtype, group: int) -> None:
    slopes = Inputs(3).normal(2 * group).abs() / 50
    for options in (
        {"softcap": 1.5},
        {"alibi_slopes": slopes},
        {"softcap": 30.0, "alibi_slopes": slopes, "window": 100},
    ):
        case = make_case(dtype, MIXED, 2, group, 64, **options)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [4, 16])
def test_sinks(gpu: Gpu, dtype, group: int) -> None:
    sinks = Inputs(5).normal(2 * group, scale=2)
    sinks[1], sinks[2] = 300.0, -300.0  # takes all the weight, and none
    for options in ({}, {"window": 100}, {"softcap": 2.0, "window": 5}):
        case = make_case(dtype, MIXED, 2, group, 64, sinks=sinks, **options)
        assert_close(case.run(gpu), case.expected(), ROUNDING[dtype])


@pytest.mark.parametrize("head_dim", [64, 256, 512])
@pytest.mark.parametrize("length", [1, 2113, 20_001])
def test_sinks_of_a_split_sequence(gpu: Gpu, length: int, head_dim: int) -> None:
    case = make_case(torch.bfloat16, [length], 8, 8, head_dim, 64, sinks=Inputs(6).normal(64) + 3)
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


def test_large_scores(gpu: Gpu) -> None:
    case = make_case(torch.bfloat16, MIXED, 2, 4, 64)
    case.q *= 200  # one token takes all the weight: results are its values
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("head_dim", [128, 256, 512])
def test_graph_replays_are_equal_and_read_the_current_lengths(gpu: Gpu, head_dim: int) -> None:
    case = make_case(torch.bfloat16, (3000, 200, 0, 1), 8, 4, head_dim, 64)
    out = poisoned(*case.q.shape, dtype=torch.bfloat16)
    workspace = decode_attention_workspace(gpu, 8, 32, head_dim)

    def attend() -> None:
        decode_attention(
            gpu,
            case.q,
            case.cache,
            block_tables=case.tables,
            context_lens=case.lengths,
            scale=case.scale,
            out=out,
            workspace=workspace,
        )

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            attend()
    first = out.clone()
    for _ in range(5):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)
    assert_close(out, case.expected(), ROUNDING[torch.bfloat16])
    shorter = [1, 199, 0, 0]
    case.lengths.copy_(torch.tensor(shorter))
    case.keys = [keys[:n] for keys, n in zip(case.keys, shorter, strict=True)]
    case.values = [values[:n] for values, n in zip(case.values, shorter, strict=True)]
    graph.replay()
    assert_close(out, case.expected(), ROUNDING[torch.bfloat16])


def test_a_sequence_does_not_depend_on_its_neighbors(gpu: Gpu) -> None:
    """With the same number of splits, a row's result is bitwise equal."""
    case = make_case(torch.bfloat16, (700, 900), 2, 4, 64)
    both = case.run(gpu)
    case.lengths[1] = 5
    assert torch.equal(case.run(gpu)[0], both[0])


def test_cache_of_more_than_2_to_the_31_elements(gpu: Gpu) -> None:
    case = make_case(torch.bfloat16, (1000, 70), 8, 4, 128, 64)
    num_blocks = 2**31 // case.cache[0].numel() + case.cache.shape[0] + 1
    cache = torch.empty(num_blocks, *case.cache.shape[1:], dtype=torch.bfloat16, device="cuda")
    moved = num_blocks - case.cache.shape[0]
    cache[moved:] = case.cache
    case.cache = cache
    case.tables[case.tables != GARBAGE] += moved
    assert_close(case.run(gpu), case.expected(), ROUNDING[torch.bfloat16])


def test_no_sequences(gpu: Gpu) -> None:
    case = make_case(torch.bfloat16, (5,), 2, 4, 64)
    workspace = decode_attention_workspace(gpu, 1, 8, 64)
    decode_attention(
        gpu,
        case.q[:0],
        case.cache,
        block_tables=case.tables[:0],
        context_lens=case.lengths[:0],
        scale=1.0,
        out=case.q[:0].contiguous(),
        workspace=workspace,
    )


def test_wrong_arguments_raise(gpu: Gpu) -> None:
    case = make_case(torch.bfloat16, (5, 9), 2, 4, 64)
    good: dict[str, Any] = {
        "q": case.q,
        "cache": case.cache,
        "block_tables": case.tables,
        "context_lens": case.lengths,
        "scale": 1.0,
        "out": case.q.contiguous(),
        "workspace": decode_attention_workspace(gpu, 2, 8, 64),
    }
    for match, wrong in (
        ("do not divide", {"cache": case.cache[:, :3]}),
        ("power of two", {"cache": case.cache[:, :, :12]}),
        ("contiguous", {"q": case.q.transpose(0, 1)[:2]}),
        ("context_lens must be", {"context_lens": case.lengths.long()}),
        ("block_tables must be", {"block_tables": case.tables[:1]}),
        ("alibi_slopes must be", {"alibi_slopes": torch.zeros(3, device="cuda")}),
        ("sinks must be", {"sinks": torch.zeros(3, device="cuda")}),
        ("0 or more", {"window": -1}),
        ("workspace", {"workspace": good["workspace"][:10]}),
    ):
        with pytest.raises(ValueError, match=match):
            decode_attention(gpu, **{**good, **wrong})
