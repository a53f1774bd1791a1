"""prefill_attention against fp64; every key that no query sees is NaN.

Tolerance: 16-bit results and attention weights are each rounded once; on average each rounding is
half of its bound. fp32: exponentials and the order of sums.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.combine_splits import MAX_SPLITS
from swiftchat.cuda.ops.attention.prefill_attention import prefill_attention
from swiftchat.cuda.ops.attention.prefill_shapes import prefill_shape
from swiftchat.cuda.quantized_kv import KV_SCHEMES, PACKED_HEAD_DIMS
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.case import Inputs, assert_close, poisoned, quantize_cache

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 5e-6}
GARBAGE = 2**30  # a block number outside every cache
# Queries and histories of several sequences in one call.
MIXED = [(1, 0), (2, 3), (17, 64), (64, 200), (65, 1000), (130, 5), (500, 64), (1, 1000), (200, 0)]
FEW = [(70, 9), (1, 130), (200, 100)]
# "split": several blocks share the keys of a tile.
PATHS = [
    ("mma", torch.bfloat16),
    ("mma split", torch.bfloat16),
    ("wgmma", torch.bfloat16),
    ("wgmma split", torch.bfloat16),
    ("auto", torch.float32),
]

SCHEME_DIMS = [
    (scheme, head_dim)
    for scheme in KV_SCHEMES
    for head_dim in (16, 48, 64, 80, 96, 128, 192, 256, 320, 512)
    if scheme != "int5" or head_dim in PACKED_HEAD_DIMS
]


@pytest.fixture(scope="module", autouse=True)
def _compiled(gpu: Gpu) -> None:
    """Compile all kernels of this file on all cores."""
    shapes = [
        (prefill_shape(gpu, dtype, dim, biased, path), dtype)
        for path in ("mma", "wgmma")
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for dim in (16, 64, 80, 96, 128, 256)
        for biased in ((False, True) if dim in (64, 128, 256) else (False,))
        if path != "wgmma" or gpu.arch == "sm_90a"
    ]
    shapes += [
        (prefill_shape(gpu, dtype, 512, biased), dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for biased in (False, True)
    ]
    shapes += [
        (prefill_shape(gpu, dtype, dim, biased, kv_scheme=scheme), dtype)
        for scheme, dim in SCHEME_DIMS
        for dtype in (torch.bfloat16, torch.float16)
        for biased in (False, True)
    ]
    gpu.compile(
        KernelSpec.of("prefill_attention", **replace(shape, split=split).macros(dtype))
        for shape, dtype in shapes
        for split in (False, True)
        if not split or dtype != torch.float32
    )


@pytest.fixture(params=PATHS, ids=["mma", "mma split", "wgmma", "wgmma split", "fp32"])
def path(request: pytest.FixtureRequest, gpu: Gpu) -> tuple[str, torch.dtype]:
    found: tuple[str, torch.dtype] = request.param
    if found[0].startswith("wgmma") and gpu.arch != "sm_90a":
        pytest.skip("needs sm_90a")
    return found


class Case:
    """Sequences of (queries, history) with keys and values scattered over a cache of NaN."""

    def __init__(
        self,
        sequences: list[tuple[int, int]],
        dtype: torch.dtype,
        *,
        heads: int = 4,
        kv_heads: int = 1,
        head_dim: int = 64,
        block_size: int = 16,
        window: int = 0,
        chunk: int = 0,
        softcap: float = 0.0,
        alibi: bool = False,
        sinks: bool = False,
        growing: bool = False,
        seed: int = 0,
    ) -> None:
        make = Inputs(seed, dtype)
        self.sequences = sequences
        self.scale = 0.7 * head_dim**-0.5
        self.options = {"window": window, "chunk": chunk, "softcap": softcap}
        counts = [queries for queries, _ in sequences]
        contexts = [queries + history for queries, history in sequences]
        self.max_num_tokens = max(counts)
        self.starts = ints(0, *torch.tensor(counts).cumsum(0).tolist())
        self.contexts = ints(*contexts)
        self.slopes = 2.0 ** -torch.arange(1, heads + 1, device="cuda").float() if alibi else None
        self.sinks = make.normal(heads, dtype=torch.float32, scale=2) if sinks else None
        if self.sinks is not None:
            self.sinks[0] = 300.0  # takes all the weight
        # Scores of several units, so that the softmax is neither flat nor one key.
        self.q = make.normal(sum(counts), heads, head_dim, scale=2)
        self.out = poisoned(sum(counts), heads, head_dim, dtype=dtype)
        blocks = [-(-context // block_size) for context in contexts]
        order = make.permutation(sum(blocks) + 5)
        self.cache = poisoned(len(order), 2 * kv_heads, block_size, head_dim, dtype=dtype)
        self.tables = torch.full((len(blocks), max(blocks) + 2), GARBAGE, device="cuda").int()
        self.keys, self.values = [], []
        for i, (context, (queries, _)) in enumerate(zip(contexts, sequences, strict=True)):
            own, order = order[: blocks[i]], order[blocks[i] :]
            keys, values = (make.normal(context, kv_heads, head_dim) for _ in range(2))
            if growing:
                keys *= torch.linspace(0.1, 5.0, context, device="cuda").to(dtype)[:, None, None]
            history, seen = context - queries, torch.arange(context, device="cuda")
            if window:
                seen = seen[max(0, history + 1 - window) :]
            if chunk:
                seen = seen[seen >= history // chunk * chunk]
            used = seen[0] // block_size
            self.tables[i, used : blocks[i]] = own[used:]
            block, place = own[seen // block_size].long(), seen % block_size
            self.cache[block, :kv_heads, place] = keys[seen]
            self.cache[block, kv_heads:, place] = values[seen]
            self.keys.append(keys)
            self.values.append(values)

    def run(self, gpu: Gpu, path: str = "auto", q: Tensor | None = None) -> Tensor:
        prefill_attention(
            gpu,
            self.q if q is None else q,
            self.cache,
            block_tables=self.tables,
            query_starts=self.starts,
            context_lens=self.contexts,
            max_num_tokens=self.max_num_tokens,
            scale=self.scale,
            out=self.out,
            alibi_slopes=self.slopes,
            sinks=self.sinks,
            path=path.removesuffix(" split"),
            max_splits=MAX_SPLITS if path.endswith(" split") else 1,
            **self.options,
        )
        return self.out

    def expected(self) -> Tensor:
        rows = self.q.split([queries for queries, _ in self.sequences])
        return torch.cat([self._sequence(i, q.double()) for i, q in enumerate(rows)])

    def _sequence(self, i: int, q: Tensor) -> Tensor:
        """Compute one sequence in fp64, one head at a time."""
        queries, history = self.sequences[i]
        positions = history + torch.arange(queries, device="cuda")[:, None]
        distance = torch.arange(history + queries, device="cuda") - positions
        visible = distance <= 0
        if self.options["window"]:
            visible &= distance > -self.options["window"]
        if chunk := self.options["chunk"]:
            visible &= distance + positions >= positions // chunk * chunk
        group = q.shape[1] // self.keys[i].shape[1]
        out = torch.empty_like(q)
        for head in range(q.shape[1]):
            keys, values = (x[i][:, head // group].double() for x in (self.keys, self.values))
            scores = q[:, head] @ keys.T * self.scale
            if cap := self.options["softcap"]:
                scores = cap * (scores / cap).tanh()
            if self.slopes is not None:
                scores += self.slopes[head].double() * distance
            scores = scores.masked_fill(~visible, -torch.inf)
            if self.sinks is not None:
                sinks = self.sinks[head].double().expand(queries, 1)
                scores = torch.cat([scores, sinks], 1)
            out[:, head] = scores.softmax(-1)[:, : len(values)] @ values
        return out

    def quantized(self, scheme: str) -> "Case":
        """Quantize the cache; keys that no query sees get the largest value and a NaN scale.

        Rows differ in size, so that using another row's scale gives a wrong result. Queries and
        output are in the rotation of an int5 cache.
        """
        num_blocks, heads, block_size, head_dim = self.cache.shape
        sizes = 2.0 ** Inputs(head_dim).integers(-6, 3, num_blocks, heads, block_size, 1)
        self.cache, self.options["kv_scales"], numbers = quantize_cache(
            scheme, self.cache * sizes.to(self.cache.dtype)
        )
        for i, table in enumerate(self.tables.tolist()):
            context = int(self.contexts[i])
            there = [t for t in range(context) if table[t // block_size] != GARBAGE]
            blocks = ints(*(table[t // block_size] for t in there)).long()
            read = numbers[blocks, :, ints(*(t % block_size for t in there)).long()]
            keys, values = self.keys[i].double(), self.values[i].double()
            keys[there], values[there] = read.nan_to_num(0.0).tensor_split(2, dim=1)
            self.keys[i], self.values[i] = keys, values
        return self

    def check(self, gpu: Gpu, path: str = "auto") -> None:
        assert_close(self.run(gpu, path), self.expected(), TOLERANCE[self.q.dtype])


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def test_sequences_of_all_lengths_in_one_call(gpu: Gpu, path) -> None:
    Case(MIXED, path[1], heads=8, kv_heads=2).check(gpu, path[0])


@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_fp16(gpu: Gpu, name: str) -> None:
    if name == "wgmma" and gpu.arch != "sm_90a":
        pytest.skip("needs sm_90a")
    for head_dim in (64, 128, 256):
        Case(MIXED, torch.float16, head_dim=head_dim).check(gpu, name)
    Case(FEW, torch.float16, head_dim=64, softcap=5.0, alibi=True).check(gpu, name)


@pytest.mark.parametrize("block_size", [4, 16, 64, 256])
def test_block_sizes(gpu: Gpu, path, block_size: int) -> None:
    Case(FEW, path[1], head_dim=128, block_size=block_size).check(gpu, path[0])


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1), (14, 2), (8, 1)])
def test_groups(gpu: Gpu, path, heads: int, kv_heads: int) -> None:
    Case(FEW, path[1], heads=heads, kv_heads=kv_heads).check(gpu, path[0])


@pytest.mark.parametrize("block_size", [4, 8, 128])
def test_block_sizes_of_wide_heads(gpu: Gpu, path, block_size: int) -> None:
    Case(FEW, path[1], head_dim=256, block_size=block_size).check(gpu, path[0])


@pytest.mark.parametrize("head_dim", [8, 16, 40, 64, 80, 96, 112, 128, 192, 256])
def test_head_dims(gpu: Gpu, path, head_dim: int) -> None:
    Case(MIXED, path[1], head_dim=head_dim, seed=head_dim).check(gpu, path[0])


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 5},
        {"window": 100},
        {"window": 4000},
        {"chunk": 1},
        {"chunk": 5},
        {"chunk": 100},
        {"chunk": 512, "window": 70, "sinks": True},
        {"chunk": 2048, "block_size": 64},
        {"softcap": 2.0},
        {"softcap": 50.0},
        {"alibi": True},
        {"sinks": True},
        {"window": 70, "sinks": True},
        {"window": 70, "softcap": 5.0, "alibi": True, "sinks": True},
        {"window": 300, "growing": True, "sinks": True, "block_size": 64},
    ],
    ids=str,
)
def test_options(gpu: Gpu, path, head_dim: int, options: dict) -> None:
    Case(MIXED, path[1], head_dim=head_dim, **options).check(gpu, path[0])


WIDEST = [
    ("mma", torch.bfloat16),
    ("mma split", torch.bfloat16),
    ("auto", torch.float16),
    ("auto split", torch.float16),
    ("auto", torch.float32),
]


@pytest.mark.parametrize(("name", "dtype"), WIDEST)
@pytest.mark.parametrize("head_dim", [264, 320, 392, 512])
def test_widest_heads(gpu: Gpu, name: str, dtype, head_dim: int) -> None:
    """Two warps share rows, of which each has half of the columns."""
    Case(MIXED, dtype, heads=4, kv_heads=2, head_dim=head_dim, seed=head_dim).check(gpu, name)


@pytest.mark.parametrize(("name", "dtype"), WIDEST)
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4},
        {"block_size": 64, "heads": 14, "kv_heads": 2},
        {"window": 5},
        {"chunk": 37},
        {"softcap": 2.0},
        {"sinks": True, "growing": True},
        {"window": 70, "softcap": 5.0, "alibi": True, "sinks": True},
    ],
    ids=str,
)
def test_widest_heads_with_options(gpu: Gpu, name: str, dtype, options: dict) -> None:
    Case(MIXED, dtype, head_dim=512, **options).check(gpu, name)


@pytest.mark.parametrize(("name", "dtype"), WIDEST)
@pytest.mark.parametrize("head_dim", [256, 512])
def test_wide_heads_with_little_shared_memory(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, name: str, dtype, head_dim: int
) -> None:
    monkeypatch.setattr(gpu, "block_shared_bytes", 99 * 1024)
    path = name.replace("auto", "mma")
    Case(MIXED, dtype, heads=4, kv_heads=2, head_dim=head_dim).check(gpu, path)
    if dtype != torch.float32:
        Case(MIXED, dtype, head_dim=head_dim).quantized("int8").check(gpu, path)


def test_the_widest_heads_repeat_exactly(gpu: Gpu) -> None:
    for sequences in ([(1000, 3000)], [(16, 9000)]):
        case = Case(sequences, torch.bfloat16, heads=8, kv_heads=2, head_dim=512, block_size=64)
        case.check(gpu, "auto split")
        first = case.out.clone()
        for _ in range(5):
            assert torch.equal(case.run(gpu, "auto split"), first)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_scores_that_grow_with_the_position(gpu: Gpu, path, head_dim: int) -> None:
    """The greatest score of a row changes again and again, by little and by much."""
    case = Case([(300, 0), (7, 2000), (150, 900)], path[1], head_dim=head_dim, growing=True)
    case.check(gpu, path[0])


def test_sinks_of_groups(gpu: Gpu, path) -> None:
    for head_dim in (64, 128, 256):
        Case(FEW, path[1], heads=14, kv_heads=2, head_dim=head_dim, sinks=True).check(gpu, path[0])


def test_more_sequences_than_warp_lanes(gpu: Gpu, path) -> None:
    lengths = [((7 * i) % 90 if i % 5 else 0, 3 + i) for i in range(100)]
    Case(lengths, path[1], heads=2).check(gpu, path[0])


def test_strided_queries(gpu: Gpu, path) -> None:
    case = Case(FEW, path[1], heads=4, head_dim=64)
    fused = poisoned(len(case.q), 6 * 64, dtype=path[1])
    fused[:, : 4 * 64] = case.q.flatten(1)
    q = fused[:, : 4 * 64].unflatten(1, (4, 64))
    assert torch.equal(case.run(gpu, path[0], q).clone(), case.run(gpu, path[0]))


@pytest.mark.parametrize("num_tokens", [1, 16, 30, 100])
def test_few_queries_after_a_long_history(gpu: Gpu, path, num_tokens: int) -> None:
    """Groups of heads that do not divide a tile; the splits do not depend on timing."""
    for heads, kv_heads in ((32, 8), (10, 2), (7, 1)):
        case = Case(
            [(num_tokens, 20_000)],
            path[1],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=128,
            block_size=64,
        )
        case.check(gpu, path[0])
        first = case.out.clone()
        for _ in range(3):
            assert torch.equal(case.run(gpu, path[0]), first)


def test_chunks_of_a_long_prompt(gpu: Gpu, path) -> None:
    """A tile of queries in two chunks; rows of the second see no key of many tiles."""
    for sequences in ([(1000, 7800)], [(40, 8180)], [(3, 8190), (200, 16_300)]):
        case = Case(sequences, path[1], heads=10, kv_heads=2, chunk=8192, block_size=64)
        case.check(gpu, path[0])


@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_a_long_prompt_after_a_long_history(gpu: Gpu, name: str) -> None:
    if name == "wgmma" and gpu.arch != "sm_90a":
        pytest.skip("needs sm_90a")
    case = Case([(3000, 5000)], torch.bfloat16, heads=2, head_dim=128, block_size=64)
    case.check(gpu, name)
    first = case.out.clone()
    for _ in range(5):
        assert torch.equal(case.run(gpu, name), first)


def test_kv_heads_run_one_after_the_other(gpu: Gpu, path) -> None:
    """A KV head is so large that only few run at the same time."""
    case = Case(FEW, path[1], heads=8, kv_heads=4)
    name = path[0].removesuffix(" split")
    expected = case.run(gpu, name).clone()
    case.max_num_tokens = 2**20
    assert torch.equal(case.run(gpu, name), expected)


def test_graph_replay_reads_the_current_lengths(gpu: Gpu, path) -> None:
    case = Case(FEW, path[1])
    case.run(gpu, path[0])
    starts, contexts = case.starts.clone(), case.contexts.clone()
    expected = case.out.clone()
    case.starts[1:], case.contexts[:] = ints(1, 2, 3), ints(1, 1, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(gpu, path[0])
    case.starts.copy_(starts)
    case.contexts.copy_(contexts)
    case.out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(case.out, expected)


def test_no_queries(gpu: Gpu) -> None:
    case = Case([(0, 5)], torch.bfloat16)
    assert case.run(gpu).numel() == 0


def test_wrong_input_raises(gpu: Gpu) -> None:
    case = Case(FEW, torch.bfloat16)
    with pytest.raises(ValueError, match="q must be"):
        case.run(gpu, q=case.q[:, :2])
    with pytest.raises(ValueError, match="q must be contiguous"):
        case.run(gpu, q=case.q.transpose(0, 1).contiguous().transpose(0, 1))
    with pytest.raises(ValueError, match="path must be"):
        case.run(gpu, path="fast")
    with pytest.raises(ValueError, match="do not divide"):
        Case(FEW, torch.bfloat16, heads=3, kv_heads=2).run(gpu)
    with pytest.raises(ValueError, match="head_dim"):
        Case(FEW, torch.bfloat16, head_dim=20).run(gpu)
    with pytest.raises(ValueError, match="block_size"):
        Case(FEW, torch.bfloat16, block_size=2).run(gpu)


@pytest.mark.parametrize(("scheme", "head_dim"), SCHEME_DIMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quantized_cache(gpu: Gpu, scheme: str, dtype, head_dim: int) -> None:
    case = Case(MIXED, dtype, heads=6, kv_heads=2, head_dim=head_dim, seed=head_dim)
    case.quantized(scheme).check(gpu)
    case.check(gpu, "auto split")


@pytest.mark.parametrize("scheme", KV_SCHEMES)
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4},
        {"block_size": 256},
        {"window": 5},
        {"chunk": 37},
        {"window": 70, "softcap": 5.0, "alibi": True, "sinks": True},
    ],
    ids=str,
)
def test_quantized_cache_with_options(gpu: Gpu, scheme: str, options: dict) -> None:
    case = Case(MIXED, torch.bfloat16, **options).quantized(scheme)
    case.check(gpu)
    case.check(gpu, "auto split")


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_quantized_cache_with_a_long_history(gpu: Gpu, scheme: str) -> None:
    case = Case([(1000, 5000)], torch.bfloat16, heads=2, head_dim=128, block_size=64)
    case.quantized(scheme).check(gpu)
    first = case.out.clone()
    for _ in range(5):
        assert torch.equal(case.run(gpu), first)
