"""sample against the rule in fp64, and against the CPU's sampler.

The sampled id must equal the reference's. If the random number is within 1e-6 of the border of two
tokens (or top-p's fraction is), either of them is allowed: fp32 rounding of exponents up to 12 can
move a border by that much.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.sampling.sampling import argmax, argmax_workspace, sample, sample_workspace
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling import sampler
from swiftchat.engine.sampling.philox import uniform
from tests.support.kernels.case import Inputs, poisoned

pytestmark = pytest.mark.gpu
VOCABS = [97, 50_257, 128_256, 262_144]
TOLERANCE = 1e-6


@dataclass
class Rule:
    """The sampling rule for one row of logits in fp64, with the range that rounding allows."""

    logits: NDArray[np.float32]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    order: NDArray[np.int64] = field(init=False)  # kept ids as they are drawn
    sums: NDArray[np.float64] = field(init=False)  # each one's mass and all before it

    def __post_init__(self) -> None:
        size = len(self.logits)
        logits = self.logits.astype(np.float64)
        heat, floor = max(self.temperature, 1e-6), float(np.float32(self.min_p))
        mass = np.exp((logits - logits.max()) / float(np.float32(heat)))
        top_k = min(self.top_k or size, size)
        self.order = np.arange(size)
        if top_k < size or self.min_p or self.top_p < 1:
            self.order = np.argsort(-logits, kind="stable")[:top_k]
        mass = mass[self.order]
        fewest = int((mass >= floor * (1 + TOLERANCE)).sum()) if floor else len(mass)
        most = int((mass >= floor * (1 - TOLERANCE)).sum()) if floor else len(mass)
        self.sums = np.cumsum(mass)
        self.least, self.most = self.sums[max(fewest, 1) - 1], self.sums[most - 1]
        if self.top_p < 1:
            share = float(np.float32(self.top_p))
            rest = self.sums[: most - 1]
            slack = TOLERANCE * (share < 1)
            exact = np.all(mass == mass[0])  # equal logits: no rounding at all
            low = share * self.least - (0 if exact else slack * self.least)
            high = share * self.most + (0 if exact else slack * self.most)
            self.least = self.sums[(rest < low).sum()]
            self.most = self.sums[(rest < high).sum()]
        self.rank = np.full(size, -1)
        self.rank[self.order] = np.arange(len(self.order))

    def between(self, numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last rank that may be sampled for each random number."""
        slack = TOLERANCE * self.most
        last = np.searchsorted(self.sums, self.most * (1 - 1e-15), "left")
        low = np.searchsorted(self.sums, numbers * self.least - slack, "right")
        high = np.searchsorted(self.sums, numbers * self.most + slack, "right")
        return np.minimum(low, last), np.minimum(high, last)

    def check(self, drawn: NDArray[np.int64], numbers: NDArray[np.float64]) -> float:
        """Fail unless each id is allowed; return the fraction of ids without an alternative."""
        low, high = self.between(numbers)
        rank = self.rank[drawn]
        wrong = np.flatnonzero((rank < low) | (rank > high))
        first = wrong[:3]
        assert not len(wrong), (
            f"{len(wrong)} of {len(drawn)}: ranks {rank[first]}, not in {low[first]} to "
            f"{high[first]} for {numbers[first]}"
        )
        return float((low == high).mean())

    def probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the kept tokens, in the order of `order`."""
        kept = 1 + int(np.searchsorted(self.sums, self.most * (1 - 1e-15), "left"))
        return np.diff(self.sums[:kept], prepend=0.0) / self.sums[kept - 1]


def draw(
    gpu: Gpu,
    logits: Tensor,
    seeds: list[int],
    positions: list[int],
    params: list[SamplingParams],
    workspace: Tensor | None = None,
) -> Tensor:
    """Sample each row and check that the workspace is reusable."""
    n, vocab = logits.shape
    device = logits.device
    values, ids = poisoned(n, dtype=torch.float32), poisoned(n, dtype=torch.int32)
    argmax(gpu, logits, values, ids, argmax_workspace(gpu, n))
    if workspace is None:
        workspace = sample_workspace(gpu, n, vocab)
        workspace[:, 1 + 2 * 512 :] = -1  # all but the counter and the histogram may be anything
    out = poisoned(n, dtype=torch.int32)

    def numbers(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=device)

    signed = torch.tensor([s - (s >> 63 << 64) for s in seeds], dtype=torch.int64, device=device)
    sample(
        gpu,
        logits,
        max_logits=values,
        argmax_ids=ids,
        temperature=numbers("temperature", torch.float32),
        top_k=numbers("top_k", torch.int32),
        top_p=numbers("top_p", torch.float32),
        min_p=numbers("min_p", torch.float32),
        seeds=signed,
        positions=torch.tensor(positions, dtype=torch.int32, device=device),
        out=out,
        workspace=workspace,
    )
    assert not workspace[:, : 1 + 2 * 512].any()
    return out


def series(
    gpu: Gpu, row: Tensor, params: SamplingParams, n: int, seed: int = 5
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sample one row n times, at positions 0 to n - 1; return the ids and the random numbers."""
    batch = min(n, 2**25 // len(row) + 1)
    logits = row.repeat(batch, 1)
    workspace = sample_workspace(gpu, batch, len(row))
    drawn = [
        draw(
            gpu,
            logits[: min(batch, n - start)],
            [seed] * min(batch, n - start),
            list(range(start, min(start + batch, n))),
            [params] * min(batch, n - start),
            workspace,
        )
        for start in range(0, n, batch)
    ]
    numbers = np.array([uniform(seed, position) for position in range(n)])
    return torch.cat(drawn).cpu().numpy().astype(np.int64), numbers


def rule(row: Tensor, params: SamplingParams) -> Rule:
    return Rule(row.cpu().numpy(), params.temperature, params.top_k, params.top_p, params.min_p)


def peaked(vocab: int, seed: int = 0) -> Tensor:
    """Return logits like a language model's: a few likely tokens and a long tail."""
    make = Inputs(seed)
    logits = make.normal(vocab) * 2
    some = make.permutation(vocab)[:40].long()
    logits[some] += make.normal(40).abs() * 6 + 8
    return logits


PARAMS = [
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.0, top_p=1.0),
    SamplingParams(temperature=1.0, top_p=0.5),
    SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
    SamplingParams(temperature=0.8, top_p=1.0, top_k=50),
    SamplingParams(temperature=1.0, top_p=1.0, min_p=0.05),
    SamplingParams(temperature=1.3, top_p=0.9, top_k=100, min_p=0.01),
    SamplingParams(temperature=2.5, top_p=0.999),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=5000),
    SamplingParams(temperature=1.0, top_p=1.0, min_p=1e-7),
]


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("params", PARAMS)
def test_peaked_logits(gpu: Gpu, vocab: int, params: SamplingParams) -> None:
    row = peaked(vocab)
    drawn, numbers = series(gpu, row, params, 300)
    exact = rule(row, params).check(drawn, numbers)
    assert exact > 0.9 or params.temperature > 2  # there the tail counts, of small masses


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_flat_logits_need_the_whole_row(
    gpu: Gpu, vocab: int, params: SamplingParams, scale: float
) -> None:
    row = Inputs(vocab).normal(vocab, scale=scale) - 3
    drawn, numbers = series(gpu, row, params, 60)
    rule(row, params).check(drawn, numbers)


def test_thousands_of_draws(gpu: Gpu) -> None:
    row, params = peaked(50_257, 3), SamplingParams(temperature=0.9, top_p=0.98)
    reference = rule(row, params)
    for seed in (0, 1, 2**63, 2**64 - 1):
        drawn, numbers = series(gpu, row, params, 1500, seed)
        assert reference.check(drawn, numbers) > 0.99


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=1.0),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=2.0, top_p=1.0, top_k=30),
        SamplingParams(temperature=1.5, top_p=1.0, min_p=0.1),
    ],
)
def test_frequencies_follow_the_probabilities(gpu: Gpu, params: SamplingParams) -> None:
    row = Inputs(4).normal(97)
    drawn, _ = series(gpu, row, params, 8000)
    reference = rule(row, params)
    expected = reference.probabilities() * len(drawn)
    counts = np.bincount(reference.rank[drawn], minlength=len(expected))
    assert len(counts) == len(expected) and counts.sum() == len(drawn)
    freedom = len(expected) - 1
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5  # and the draws are fixed


@pytest.mark.parametrize("vocab", [97, 50_257, 128_256])
def test_equals_the_cpu_sampler(gpu: Gpu, vocab: int) -> None:
    row = peaked(vocab, 7)
    logits = row.cpu()
    for params in PARAMS[:8]:
        drawn, numbers = series(gpu, row, params, 12, seed=9)
        low, high = rule(row, params).between(numbers)
        for position, token in enumerate(drawn):
            expected = sampler.sample(logits, [0] * position, position, params, 9)
            assert token == expected or low[position] < high[position]


def test_equal_logits_top_p(gpu: Gpu) -> None:
    """top_p 0.5 keeps the lower half of the ids if all logits are equal."""
    row, params = torch.full((128_256,), -2.5, device="cuda"), SamplingParams(1.0, top_p=0.5)
    drawn, numbers = series(gpu, row, params, 100)
    assert np.array_equal(drawn, np.floor(numbers * 64_128).astype(np.int64))


def test_equal_logits_top_k(gpu: Gpu) -> None:
    row = torch.zeros(128_256, device="cuda")
    params = SamplingParams(temperature=1.0, top_p=1.0, top_k=50)
    drawn, numbers = series(gpu, row, params, 500)
    assert np.array_equal(drawn, np.floor(numbers * 50).astype(np.int64))


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 0x9E3779B97F4A7C15, 2**64 - 1])
def test_equal_logits_reveal_the_random_number(gpu: Gpu, seed: int) -> None:
    """The id is the upper 18 bits of the random number; 0 and -0 are equal logits."""
    row = torch.zeros(2**18, device="cuda")
    row[::3] = -0.0
    params = SamplingParams(temperature=1.0, top_p=1.0)
    drawn, numbers = series(gpu, row, params, 250, seed)
    assert np.array_equal(drawn, np.floor(numbers * 2**18).astype(np.int64))


def test_random_number_uses_all_bits_of_the_position(gpu: Gpu) -> None:
    row, positions = torch.zeros(2**18, device="cuda"), [0, 1, 2**16, 2**31 - 1]
    params = [SamplingParams(temperature=1.0, top_p=1.0)] * 4
    drawn = draw(gpu, row.repeat(4, 1), [77] * 4, positions, params)
    assert drawn.tolist() == [int(uniform(77, p) * 2**18) for p in positions]


def test_ties_at_the_cut_keep_the_lowest_ids(gpu: Gpu) -> None:
    row = torch.full((50_257,), -1.0, device="cuda")
    row[[40_000, 17, 30_000, 9_999]] = 2.0  # four largest, three of them kept
    params = SamplingParams(temperature=1.0, top_p=1.0, top_k=3)
    drawn, numbers = series(gpu, row, params, 200)
    kept = np.array([17, 9_999, 30_000])
    assert np.array_equal(drawn, kept[np.floor(numbers * 3).astype(np.int64)])


@pytest.mark.parametrize("num_values", [2, 5])
def test_few_distinct_values(gpu: Gpu, num_values: int) -> None:
    row = Inputs(6).integers(0, num_values, 128_256).float() * 0.75
    for params in PARAMS[:8]:
        drawn, numbers = series(gpu, row, params, 20)
        rule(row, params).check(drawn, numbers)


@pytest.mark.parametrize("params", PARAMS)
def test_one_hot(gpu: Gpu, params: SamplingParams) -> None:
    row = torch.full((128_256,), -60.0, device="cuda")
    row[77_777] = 40
    drawn, _ = series(gpu, row, params, 50)
    assert (drawn == 77_777).all()


@pytest.mark.parametrize("params", PARAMS)
def test_peak_over_many_tokens_outside_the_histogram(gpu: Gpu, params: SamplingParams) -> None:
    """Many tokens below e^-12 of the largest have as much mass together as the largest."""
    row = -Inputs(8).normal(262_144).abs() * 0.1 - 12.1
    row[200_000] = 0
    row[::4096] = -1e30  # masked
    drawn, numbers = series(gpu, row, params, 60)
    rule(row, params).check(drawn, numbers)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_logits_of_any_size(gpu: Gpu, scale: float) -> None:
    row = Inputs(9).normal(50_257) * scale
    for params in PARAMS[:8]:
        drawn, numbers = series(gpu, row, params, 20)
        rule(row, params).check(drawn, numbers)


def test_logits_spread_over_all_exponents(gpu: Gpu) -> None:
    make = Inputs(10)
    row = torch.exp2(make.normal(128_256) * 40).clamp(1e-44, 1.5e38) * make.normal(128_256).sign()
    row[:60_000] = 3e-45 * make.integers(0, 3, 60_000)
    for params in (SamplingParams(2e37, top_p=0.6), SamplingParams(2e37, 3000, 1.0)):
        drawn, numbers = series(gpu, row, params, 20)
        rule(row, params).check(drawn, numbers)


@pytest.mark.parametrize("temperature", [1e-300, 1e-7, 1e-6, 100.0, 1e30])
def test_extreme_temperatures(gpu: Gpu, temperature: float) -> None:
    row = Inputs(11).normal(50_257)
    for top_p in (0.9, 1.0):
        params = SamplingParams(temperature=temperature, top_p=top_p)
        drawn, numbers = series(gpu, row, params, 20)
        if temperature < 1e-5:
            assert (drawn == int(row.argmax())).all()
        else:
            rule(row, params).check(drawn, numbers)


@pytest.mark.parametrize("vocab", [1, 2, 31, 4095, 4096, 4097, 8195])
def test_sizes_about_a_chunk(gpu: Gpu, vocab: int) -> None:
    row = Inputs(vocab).normal(vocab)
    for params in PARAMS:
        drawn, numbers = series(gpu, row, params, 40)
        rule(row, params).check(drawn, numbers)


@pytest.mark.parametrize("vocab", [97, 50_257])
def test_rows_of_a_mixed_batch_are_independent(gpu: Gpu, vocab: int) -> None:
    """Greedy rows and rows with NaN are included; each row is sampled as if it were alone."""
    every = [SamplingParams(temperature=0.0, top_k=3), *PARAMS]
    n = 3 * len(every)
    params = [every[i % len(every)] for i in range(n)]
    rows = [peaked(vocab, i) if i % 2 else Inputs(i).normal(vocab) for i in range(n)]
    rows[4][vocab // 2] = -torch.inf
    rows[11][3] = torch.nan  # a greedy row
    logits, seeds, positions = torch.stack(rows), list(range(n)), [5 * i for i in range(n)]
    drawn = draw(gpu, logits, seeds, positions, params).tolist()
    for i in range(n):
        alone = draw(gpu, logits[i : i + 1].clone(), [seeds[i]], [positions[i]], [params[i]])
        assert drawn[i] == alone.item()
        if i in (4, 11):
            assert drawn[i] == -1
        elif params[i].temperature == 0:
            assert drawn[i] == int(logits[i].argmax())
        else:
            number = np.array([uniform(seeds[i], positions[i])])
            rule(logits[i], params[i]).check(np.array([drawn[i]]), number)


def test_graph_replays_are_equal(gpu: Gpu) -> None:
    """Replay a graph of argmax and sample: every path through the kernel resets the workspace."""
    params = [*PARAMS, SamplingParams(temperature=0.0)]
    n, vocab = len(params), 50_257
    logits = torch.stack([peaked(vocab, i) if i % 3 else Inputs(i).normal(vocab) for i in range(n)])
    values, ids = poisoned(n, dtype=torch.float32), poisoned(n, dtype=torch.int32)
    out, seeds = poisoned(n, dtype=torch.int32), torch.arange(n, device="cuda")
    positions = torch.full((n,), 3, dtype=torch.int32, device="cuda")
    heat, top_p, min_p = (
        torch.tensor([getattr(p, name) for p in params], device="cuda")
        for name in ("temperature", "top_p", "min_p")
    )
    top_k = torch.tensor([p.top_k for p in params], dtype=torch.int32, device="cuda")
    spaces = argmax_workspace(gpu, n), sample_workspace(gpu, n, vocab)

    def step() -> None:
        argmax(gpu, logits, values, ids, spaces[0])
        sample(
            gpu,
            logits,
            max_logits=values,
            argmax_ids=ids,
            temperature=heat,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=seeds,
            positions=positions,
            out=out,
            workspace=spaces[1],
        )

    step()
    expected = draw(gpu, logits, list(range(n)), [3] * n, params)
    assert torch.equal(out, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
        step()
    for _ in range(10):
        out.fill_(-7)
        graph.replay()
        assert torch.equal(out, expected)


def test_wrong_tensors_raise(gpu: Gpu) -> None:
    f, i = (lambda n: torch.zeros(n, device="cuda")), (lambda n: f(n).int())
    good = {
        "logits": torch.zeros(2, 100, device="cuda"),
        "max_logits": f(2),
        "argmax_ids": i(2),
        "temperature": f(2),
        "top_k": i(2),
        "top_p": f(2),
        "min_p": f(2),
        "seeds": i(2).long(),
        "positions": i(2),
        "out": i(2),
        "workspace": sample_workspace(gpu, 2, 100),
    }
    for match, wrong in (
        (r"seeds must be torch.int64", {"seeds": i(2)}),
        ("workspace for 1", {"workspace": good["workspace"][:1]}),
        ("workspace must be", {"logits": torch.zeros(2, 5000, device="cuda")}),
    ):
        with pytest.raises(ValueError, match=match):
            sample(gpu, **{**good, **wrong})
