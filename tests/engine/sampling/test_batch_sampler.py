"""Sampling of many rows at once: each row gets what it gets alone, for all mixtures of controls."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling import batch_sampler
from swiftchat.engine.sampling.batch_sampler import Draw, sample_rows
from swiftchat.engine.sampling.philox import uniform, uniforms
from swiftchat.engine.sampling.sampler import ALL_BANNED, NOT_FINITE, sample


def alone(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    return [
        sample(row, one.tokens, one.num_prompt, one.params, one.seed, one.allowed, one.position)
        for row, one in zip(logits, draws, strict=True)
    ]


def random_params(rng: random.Random) -> SamplingParams:
    """Return one of a few settings, so that rows share some, with or without rare controls."""
    common = rng.choice(
        [
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 1.0},
            {"temperature": 0.7, "top_p": 0.95},
            {"temperature": 0.7, "top_p": 0.3, "top_k": 40},
            {"temperature": 5.0, "top_p": 0.999},  # more candidates than the partial sort has
            {"temperature": 1.2, "min_p": 0.05, "top_p": 1.0},
            {"temperature": 1.2, "min_p": 1e-6, "top_p": 0.9, "top_k": 5000},
        ]
    )
    rare = rng.choice(
        [
            {},
            {},
            {"repeat_penalty": 1.3},
            {"logit_bias": ((1, 3.0), (2, -100.0))},
            {"typical_p": 0.8},
            {"top_n_sigma": 1.0, "xtc_probability": 0.5},
            {"top_p_decay": 0.9},
            {"bad_words": ((1,), (2, 3))},
            {"dry_multiplier": 0.8},
        ]
    )
    return SamplingParams(**{**common, **rare})


@given(st.integers(0, 2**32), st.sampled_from([4, 300, 3000]), st.integers(1, 24))
@settings(max_examples=60, deadline=None)
def test_each_row_gets_the_token_that_it_gets_alone(seed: int, size: int, num_rows: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, size, generator=generator) * rng.choice([0.0, 1.0, 6.0])
    if rng.random() < 0.3:
        logits = (logits * 2).round()  # ties
    draws = []
    for i in range(num_rows):
        tokens = [rng.randrange(4) for _ in range(rng.randrange(1, 20))]
        allowed = None
        if rng.random() < 0.1:
            allowed = torch.rand(size, generator=generator) < rng.choice([0.0, 0.5])
        if rng.random() < 0.05:
            logits[i, rng.randrange(size)] = rng.choice([float("nan"), float("inf")])
        num_prompt = rng.randrange(len(tokens) + 1)
        params = random_params(rng)
        position = len(tokens) + rng.choice([0, 0, 7])  # behind proposed tokens
        draws.append(Draw(tokens, num_prompt, params, rng.getrandbits(64), position, allowed))
    expected = alone(logits, draws)
    before = logits.clone()
    assert sample_rows(logits, draws) == expected
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("max_elements", [1, 2500, 1 << 22])
def test_groups_are_divided_into_parts(max_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sampler, "_MAX_ELEMENTS", max_elements)
    logits = torch.randn(9, 1000, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=0.9), SamplingParams(temperature=0), SamplingParams()]
    draws = [Draw([1, 2], 1, params[i % 3], i, 2) for i in range(9)]
    assert sample_rows(logits, draws) == alone(logits, draws)


def test_rows_without_a_token() -> None:
    logits = torch.zeros(4, 3)
    logits[1, 2] = float("nan")
    banned = SamplingParams(bad_words=((0,), (1,), (2,)))
    settings = [SamplingParams(), SamplingParams(), banned, SamplingParams(temperature=0)]
    draws = [Draw([1], 1, params, 5, 1) for params in settings]
    first, *others = sample_rows(logits, draws)
    assert first in (0, 1, 2) and others == [NOT_FINITE, ALL_BANNED, 0]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), min_size=1))
@settings(max_examples=50, deadline=None)
def test_random_numbers_of_many_draws(pairs: list[tuple[int, int]]) -> None:
    found = uniforms([seed for seed, _ in pairs], [position for _, position in pairs])
    assert found.tolist() == [uniform(*pair) for pair in pairs]
