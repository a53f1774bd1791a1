"""Sampling against plain definitions in fp64; random numbers against published vectors."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.logprobs import pack_logprobs, unpack_logprobs
from swiftchat.engine.sampling.penalties import apply_penalties
from swiftchat.engine.sampling.philox import philox4x32, uniform
from swiftchat.engine.sampling.sampler import NOT_FINITE, sample
from swiftchat.errors import UsageError


def sample_list(logits: list[float], params: SamplingParams) -> int:
    return sample(torch.tensor(logits), [], 0, params, 0)


def support(logits: torch.Tensor, params: SamplingParams) -> dict[int, float]:
    """Return the ids that may be sampled with their probabilities, in fp64."""
    probs = torch.softmax(logits.double() / params.temperature, 0).tolist()
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    kept = order[: params.top_k] if params.top_k else order
    kept = [i for i in kept if probs[i] >= params.min_p * probs[order[0]]]
    mass = sum(probs[i] for i in kept)
    chosen, before = [], 0.0
    for i in kept:
        if params.top_p < 1 and before >= params.top_p * mass:
            break
        chosen.append(i)
        before += probs[i]
    return {i: probs[i] / before for i in chosen}


def test_philox_known_answers() -> None:
    """The published test vectors of Random123 for Philox4x32-10."""
    ones = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((ones,) * 4, (ones,) * 2) == (
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    )
    assert philox4x32(
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    ) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )


def test_uniform_is_uniform() -> None:
    values = [uniform(7, i) for i in range(20_000)]
    counts = Counter(int(v * 20) for v in values)
    chi2 = sum((counts[i] - 1000) ** 2 / 1000 for i in range(20))
    assert min(values) >= 0 and max(values) < 1
    assert chi2 < 43.8  # 19 degrees of freedom, p = 0.001, and the numbers are fixed


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert sample_list([0.0, 2.0, 2.0, 1.0], SamplingParams(temperature=0)) == 1


def test_greedy_ignores_every_filter() -> None:
    params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9)
    assert sample_list([0.0, 5.0, 1.0], params) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_give_no_token(bad: float, temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    assert sample_list([0.0, bad, 1.0], params) == NOT_FINITE


@given(
    st.integers(0, 2**32),
    st.sampled_from([2, 5, 300, 2000]),
    st.integers(0, 400),
    st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.3, 1.0, 5.0]),
)
@settings(max_examples=150, deadline=None)
def test_only_candidates_that_pass_the_filters_are_sampled(
    seed: int, size: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    allowed = support(logits, params)
    if len(allowed) < size:  # fp32 may round one more candidate across the threshold
        allowed |= support(
            logits,
            SamplingParams(
                temperature=temperature,
                top_k=top_k,
                top_p=min(1.0, top_p * (1 + 1e-4)),
                min_p=min_p * (1 - 1e-5),
            ),
        )
    for position in range(5):
        assert sample(logits, [0] * position, position, params, seed) in allowed


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=1.0),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(temperature=1.5, top_k=3, top_p=1.0),
        SamplingParams(temperature=1.0, top_p=1.0, min_p=0.2),
    ],
)
def test_frequencies_follow_the_probabilities(params: SamplingParams) -> None:
    logits = torch.tensor([1.0, 2.0, 0.5, -1.0, 1.8, 0.0])
    expected = support(logits, params)
    n = 4000
    counts = Counter(sample(logits, [0] * i, i, params, 11) for i in range(n))
    assert set(counts) <= set(expected)
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in expected.items())
    assert chi2 < 20.6  # 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6])
def test_a_tiny_temperature_equals_greedy(temperature: float) -> None:
    assert sample_list([0.0, 80.0, 79.0], SamplingParams(temperature=temperature)) == 1


def test_the_token_that_crosses_top_p_is_kept() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    params = SamplingParams(temperature=1.0, top_p=0.6)
    sampled = {sample(logits, [0] * i, i, params, 3) for i in range(200)}
    assert sampled == {0, 1}


def test_a_seed_repeats_and_another_differs() -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=1.0)

    def series(seed: int) -> list[int]:
        return [sample(logits, [0] * i, i, params, seed) for i in range(50)]

    assert series(1) == series(1)
    assert series(1) != series(2)


def test_repetition_penalty_applies_once_per_id_for_either_sign() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0])
    params = SamplingParams(repeat_penalty=2.0)
    out = apply_penalties(logits, [0, 0, 1], 3, params)
    assert out.tolist() == [1.0, -4.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0]


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    out = apply_penalties(torch.zeros(4), [0, 0, 1, 2, 2], 2, params)
    assert out.tolist() == [0.0, -0.75, -1.0, 0.0]


def test_logprobs_are_the_log_softmax_of_the_logits() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]] * 2).log() + 7
    found, other = unpack_logprobs(pack_logprobs(logits, [2, 1], 2))
    assert found.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [i for i, _ in found.top] == [0, 1]
    assert other.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    (everything, _) = unpack_logprobs(pack_logprobs(logits, [0, 0], 50))
    probs = [math.exp(logprob) for _, logprob in everything.top]
    assert probs == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    assert unpack_logprobs(pack_logprobs(logits, [0, 0], 0))[1].top == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": -1},
        {"logprobs": 51},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": 1e-30},
        {"frequency_penalty": 1e30},
        {"seed": -1},
        {"seed": 2**64},
        {"max_tokens": -1},
        {"presence_penalty": math.inf},
    ],
)
def test_parameters_out_of_range_are_named(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingParams(**wrong)
