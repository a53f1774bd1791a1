"""Controls before the temperature: equal to transformers' processors on the same logits."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.penalties import apply_dry
from swiftchat.engine.sampling.sampler import ALL_BANNED, process_logits, sample, sampling_error

VOCAB = 12  # few ids, so that they repeat
IDS = st.integers(0, VOCAB - 1)
TOKENS = st.lists(IDS, min_size=1, max_size=40)
VALUES = st.floats(-20, 20, width=32)


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 5


@st.composite
def controls(draw: st.DrawFn) -> tuple[SamplingParams, list[int], int]:
    """Random parameters, the tokens of a sequence, and how many of them are the prompt."""
    tokens = draw(TOKENS)
    params = SamplingParams(
        logit_bias=tuple(draw(st.dictionaries(IDS, VALUES, max_size=4)).items()),
        repeat_penalty=draw(st.sampled_from([1.0, 0.5, 1.3])),
        no_repeat_ngram=draw(st.integers(0, 4)),
        bad_words=tuple(map(tuple, draw(st.lists(st.lists(IDS, min_size=1, max_size=3))))),
        min_tokens=draw(st.integers(0, 5)),
        stop_ids=tuple(draw(st.sets(IDS, min_size=1, max_size=2))),
    )
    return params, tokens, draw(st.integers(1, len(tokens)))


def by_transformers(
    logits: torch.Tensor, tokens: list[int], num_prompt: int, params: SamplingParams
) -> torch.Tensor:
    """Apply transformers' processors in our order."""
    processors = []
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias}
        processors.append(SequenceBiasLogitsProcessor(bias))
    processors.append(RepetitionPenaltyLogitsProcessor(params.repeat_penalty))
    if params.no_repeat_ngram:
        processors.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram))
    if params.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    ends = list(params.stop_ids)
    processors.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, ends))
    ids, scores = torch.tensor([tokens]), logits.unsqueeze(0)
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0]


@given(controls(), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_logits_equal_transformers(case: tuple[SamplingParams, list[int], int], seed: int) -> None:
    params, tokens, num_prompt = case
    logits = random_logits(seed)
    before = logits.clone()
    found = process_logits(logits, tokens, num_prompt, params)
    assert torch.equal(found, by_transformers(logits, tokens, num_prompt, params))
    assert torch.equal(logits, before)


@given(TOKENS, st.data())
@settings(max_examples=100, deadline=None)
def test_a_window_limits_the_penalties_to_the_last_tokens(
    tokens: list[int], data: st.DataObject
) -> None:
    num_prompt, last_n = data.draw(st.integers(1, len(tokens))), data.draw(st.integers(-1, 50))
    params = SamplingParams(
        repeat_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, repeat_last_n=last_n
    )
    logits = random_logits(len(tokens))
    expected = logits.clone()
    start = 0 if last_n < 0 else max(0, len(tokens) - last_n)
    for token in set(tokens[start:]):
        expected[token] = logits[token] / 1.5 if logits[token] > 0 else logits[token] * 1.5
    generated = tokens[max(start, num_prompt) :]
    for token in set(generated):
        expected[token] -= 0.5 + 0.25 * generated.count(token)
    torch.testing.assert_close(process_logits(logits, tokens, num_prompt, params), expected)


def dry_penalties(tokens: list[int], params: SamplingParams) -> dict[int, float]:
    """The penalties by the definition: compare every suffix with every earlier place."""
    longest: dict[int, int] = {}
    for size in range(1, min(50, len(tokens)) + 1):
        suffix = tokens[len(tokens) - size :]
        if set(suffix) & set(params.dry_breaker_ids):
            break
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == suffix and tokens[end] not in params.dry_breaker_ids:
                longest[tokens[end]] = size
    allowed = params.dry_allowed_length
    return {
        token: params.dry_multiplier * params.dry_base ** (size - allowed)
        for token, size in longest.items()
        if size >= allowed
    }


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.8, 3.0]),
    st.sampled_from([1.0, 1.75, 2.5]),
    st.integers(1, 5),
    st.sets(st.integers(0, 4), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_dry_equals_its_definition(
    tokens: list[int], multiplier: float, base: float, allowed: int, breakers: set[int]
) -> None:
    params = SamplingParams(
        dry_multiplier=multiplier,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_breaker_ids=tuple(breakers),
    )
    logits = random_logits(1)
    expected = logits.double()
    for token, penalty in dry_penalties(tokens, params).items():
        expected[token] -= penalty
    found = apply_dry(logits, tokens, params)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-5)


def test_dry_stays_finite_for_endless_repetition() -> None:
    params = SamplingParams(dry_multiplier=100.0, dry_base=2.0, dry_allowed_length=1)
    found = apply_dry(torch.zeros(VOCAB), [1] * 5000, params)
    assert found.isfinite().all() and found[1] == -100 * 2.0**49


def test_a_bad_word_of_several_tokens_bans_only_its_last_one() -> None:
    params = SamplingParams(temperature=0, bad_words=((3, 4), (5,)))
    logits = torch.zeros(VOCAB)
    logits[4], logits[5] = 1.0, 2.0
    assert sample(logits, [1, 3], 2, params, 0) == 0
    assert sample(logits, [3, 1], 2, params, 0) == 4


def test_the_minimum_length_bans_every_end_token_until_it_is_reached() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_ids=(1, 2, 99))
    logits = torch.tensor([0.0, 3.0, 2.0, 1.0])
    assert [sample(logits, [0] * n, 3, params, 0) for n in (3, 4, 5)] == [3, 3, 1]


def test_without_any_token_left_the_error_names_the_options() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, bad_words=((0,), (1,)))
        assert sample(torch.zeros(2), [0], 1, params, 0) == ALL_BANNED
    assert "--ban" in sampling_error(ALL_BANNED).hint
