"""Filters of the distribution: equal to transformers' warpers, and sampled with its frequencies."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.filters import decayed_top_p, exclude_top_choices
from swiftchat.engine.sampling.philox import uniforms
from swiftchat.engine.sampling.sampler import distribution, draw, sample

NUM_DRAWS = 100_000
# The 0.999 quantile of chi-square, by degrees of freedom from 0 on.
CHI_SQUARE = (0.0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32)


def by_transformers(
    logits: torch.Tensor, params: SamplingParams, slack: float, typical_slack: float = 0.0
) -> torch.Tensor:
    """Return probabilities, 0 for removed ids; the slacks move thresholds to keep more.

    An id that typical-p removes may have been the most likely one, and then the filters behind it
    keep others.
    """
    scores = TemperatureLogitsWarper(params.temperature)(None, logits.double().unsqueeze(0))
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.typical_p < 1:
        scores = TypicalLogitsWarper(min(params.typical_p * (1 + typical_slack), 1 - 1e-9))(
            None, scores
        )
    if params.min_p:
        scores = MinPLogitsWarper(min(params.min_p * (1 - slack), 1.0))(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(min(params.top_p * (1 + slack), 1.0))(None, scores)
    return scores.softmax(1)[0]


def kept(logits: torch.Tensor, params: SamplingParams) -> dict[int, float]:
    values, ids = distribution(logits, [], params)
    return dict(zip(ids.tolist(), (values / values.sum()).tolist(), strict=True))


@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 300, 2000]),
    st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.2, 0.7, 0.95, 1.0]),
    st.sampled_from([0.3, 1.0, 5.0]),
)
@settings(max_examples=150, deadline=None)
def test_candidates_equal_transformers(
    seed: int,
    size: int,
    top_k: int,
    typical_p: float,
    min_p: float,
    top_p: float,
    temperature: float,
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(
        temperature=temperature, top_k=top_k, typical_p=typical_p, min_p=min_p, top_p=top_p
    )
    found = kept(logits, params)
    # fp32 may move an id that is within 1e-4 of a threshold to its other side.
    if len(set(logits.tolist())) == size:
        assert any(
            set(least.nonzero().flatten().tolist())
            <= set(found)
            <= set(most.nonzero().flatten().tolist())
            for typical_slack in (0.0, -1e-4, 1e-4)
            for least, most in [
                [by_transformers(logits, params, slack, typical_slack) for slack in (-1e-4, 1e-4)]
            ]
        )
    expected = by_transformers(logits, params, 0.0)
    if set(found) == set(expected.nonzero().flatten().tolist()):
        for token, prob in found.items():
            assert prob == pytest.approx(float(expected[token]), rel=1e-4, abs=1e-7)


def drawn_at_once(values: torch.Tensor, ids: torch.Tensor, seed: int) -> list[int]:
    """Return what `draw` returns at the first positions, in a hundredth of its time."""
    cumulative = values.double().cumsum(0)
    points = uniforms([seed] * NUM_DRAWS, range(NUM_DRAWS)) * float(cumulative[-1])
    indices = torch.searchsorted(cumulative, torch.from_numpy(points), right=True)
    return list(ids[indices.clamp(max=len(ids) - 1)].tolist())


PLAIN = {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.15},
        {"typical_p": 0.6},
        {"top_k": 6, "typical_p": 0.9, "min_p": 0.05, "top_p": 0.9, "temperature": 0.8},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_frequencies_of_100_000_draws_follow_the_probabilities(changes: dict) -> None:
    logits = torch.tensor([1.0, 2.0, 0.5, -1.0, 1.8, 0.0, 0.9, -0.4])
    params = SamplingParams(**(PLAIN | changes))
    expected = by_transformers(logits, params, 0.0)
    candidates = distribution(logits, [], params)
    drawn = drawn_at_once(*candidates, 11)
    assert drawn[:1000] == [draw(*candidates, 11, position) for position in range(1000)]
    counts = Counter(drawn)
    support = expected.nonzero().flatten().tolist()
    assert set(counts) == set(support) and (len(support) < len(logits)) == bool(
        changes.keys() - {"temperature"}
    )
    statistic = sum(
        (counts[i] - NUM_DRAWS * expected[i]) ** 2 / (NUM_DRAWS * expected[i]) for i in support
    )
    # The draws are fixed by the seed, so this passes always or never.
    assert statistic < CHI_SQUARE[len(support) - 1]


def by_numpy(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """Return the probabilities of top-nσ, top-p and XTC, which excludes at some positions only."""
    values = logits.double().numpy()
    if params.top_n_sigma:
        banned = np.isneginf(values)
        sigma = np.sqrt(np.mean((values[~banned] - values[~banned].mean()) ** 2))
        values = np.where(values >= values.max() - params.top_n_sigma * sigma, values, -np.inf)
    weights = np.exp((values - values.max()) / params.temperature)
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= params.top_p]] = 0
    weights /= weights.sum()
    excluded = weights.copy()
    tops = [i for i in order if weights[i] >= params.xtc_threshold]
    excluded[tops[:-1]] = 0
    excluded /= excluded.sum()
    share = params.xtc_probability
    return np.asarray(share * excluded + (1 - share) * weights)


LOGITS = [1.0, 2.0, 0.5, -1.0, 1.8, 0.0, 0.9, -0.4]


@pytest.mark.parametrize(
    ("changes", "num_kept"),
    [
        ({"top_n_sigma": 1.0}, 2),
        ({"top_n_sigma": 1.0, "temperature": 3.0}, 2),
        ({"top_n_sigma": 0.05}, 1),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, 5),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.3}, 8),
        ({"xtc_probability": 0.4, "xtc_threshold": 0.1}, 8),
        ({"xtc_probability": 0.5, "top_p": 0.8, "temperature": 0.8}, 4),
        ({"xtc_probability": 0.3, "xtc_threshold": 0.2, "top_n_sigma": 1.5}, 4),
    ],
    ids=str,
)
def test_top_n_sigma_and_xtc_are_sampled_with_their_frequencies(
    changes: dict, num_kept: int
) -> None:
    """5,000 tokens that a grammar allows, against an implementation in numpy."""
    num_draws, params = 5_000, SamplingParams(**(PLAIN | changes))
    logits = torch.tensor([*LOGITS, 9.0])
    allowed = torch.tensor([True] * len(LOGITS) + [False])
    expected = by_numpy(torch.tensor([*LOGITS, -torch.inf]), params)
    assert np.count_nonzero(expected) == num_kept
    counts = Counter(
        sample(logits, [], 0, params, 5, allowed, position) for position in range(num_draws)
    )
    assert set(counts) == set(np.flatnonzero(expected).tolist())
    statistic = sum((n - num_draws * expected[i]) ** 2 / expected[i] for i, n in counts.items())
    assert statistic / num_draws < ((0.0, *CHI_SQUARE[1:])[num_kept - 1] or 1e-9)


def test_xtc_excludes_at_positions_that_do_not_depend_on_the_drawn_number() -> None:
    """Else the excluded distribution would see only a part of the numbers."""
    params = SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.1)
    found = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4, 7, 9])
    points = [
        uniforms([3], [position])[0]
        for position in range(4000)
        if len(exclude_top_choices(found, params, 3, position)[1]) == 1
    ]
    assert 1850 < len(points) < 2150 and abs(np.mean(points) - 0.5) < 0.03


def test_top_p_decays_until_a_reset_and_not_below_its_minimum() -> None:
    params = SamplingParams(top_p=0.8, top_p_decay=0.5, top_p_min=0.15, top_p_reset_ids=(7, 8))
    found = [decayed_top_p([1, 1, 7, 1, 8, 2, 2, 2][:n], params) for n in range(9)]
    assert found == pytest.approx([0.8, 0.4, 0.2, 0.8, 0.4, 0.8, 0.4, 0.2, 0.15])
    assert decayed_top_p([1] * 5, SamplingParams(top_p=0.8)) == 0.8
    assert 0 < decayed_top_p([1] * 5000, SamplingParams(top_p_decay=0.1)) < 1e-5


def test_sampling_uses_the_decayed_top_p() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    params = SamplingParams(temperature=1.0, top_p=0.95, top_p_decay=0.5)

    def support(num_generated: int) -> set[int]:
        tokens = [0] * (3 + num_generated)
        return {sample(logits, tokens, 3, params, seed) for seed in range(300)}

    assert [support(n) for n in (0, 1, 2)] == [{0, 1, 2, 3}, {0, 1}, {0}]
