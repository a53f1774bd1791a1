"""Beam search over tables of logprobs, against all continuations there are."""

import itertools
import math
import random

import pytest
import torch

from swiftchat.engine.sampling.beam_search import BeamSearch, Candidate, Hypothesis

VOCAB_SIZE, STOP_ID = 4, 3


def logprobs_after(tokens: tuple[int, ...]) -> list[float]:
    """Return random logprobs that depend on all tokens before."""
    generator = torch.Generator().manual_seed(hash(tokens) % 2**31)
    return torch.log_softmax(3 * torch.randn(VOCAB_SIZE, generator=generator), 0).tolist()


def run(search: BeamSearch) -> list[Hypothesis]:
    while True:
        candidates = [
            Candidate(beam, token, total + logprob)
            for beam, (tokens, total) in enumerate(zip(search.tokens, search.logprobs, strict=True))
            for token, logprob in enumerate(logprobs_after(tokens))
        ]
        if not search.advance(candidates):
            return search.finished


def all_hypotheses(max_tokens: int, length_penalty: float) -> list[Hypothesis]:
    """Return every answer, best first."""
    found: list[Hypothesis] = []
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(VOCAB_SIZE), repeat=length):
            ends = tokens[-1] == STOP_ID or length == max_tokens
            if STOP_ID in tokens[:-1] or not ends:
                continue
            total = sum(logprobs_after(tokens[:i])[tokens[i]] for i in range(length))
            found.append(Hypothesis(tokens, total / length**length_penalty))
    return sorted(found, key=lambda one: -one.score)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_enough_beams_find_the_best_answers(length_penalty: float) -> None:
    # 64 beams hold every continuation of 4 tokens, so the search is exhaustive.
    search = BeamSearch(64, frozenset({STOP_ID}), 4, length_penalty, "never")
    best = all_hypotheses(4, length_penalty)
    found = run(search)
    assert [one.tokens for one in found[:20]] == [one.tokens for one in best[:20]]
    for one, expected in zip(found, best, strict=False):
        assert math.isclose(one.score, expected.score, rel_tol=1e-9)


def test_one_beam_is_greedy() -> None:
    (found,) = run(BeamSearch(1, frozenset({STOP_ID}), 6, early_stopping="true"))
    for i, token in enumerate(found.tokens):
        assert token == max(range(VOCAB_SIZE), key=lambda t: logprobs_after(found.tokens[:i])[t])


def test_early_stopping_ends_with_the_first_answers() -> None:
    # The stop id is the best candidate, but the other one may lead to a better score.
    candidates = [Candidate(0, STOP_ID, -0.69), Candidate(0, 1, -0.7)]
    search = BeamSearch(1, frozenset({STOP_ID}), 10, 1.0, "true")
    assert not search.advance(candidates)
    assert [one.tokens for one in search.finished] == [(STOP_ID,)]
    search = BeamSearch(1, frozenset({STOP_ID}), 10, 1.0, "never")
    assert search.advance(candidates)
    assert not search.advance([Candidate(0, STOP_ID, -0.71), Candidate(0, 1, -9.0)])
    assert [one.tokens for one in search.finished] == [(1, STOP_ID)]


def test_a_stop_id_below_the_best_candidates_does_not_finish() -> None:
    search = BeamSearch(1, frozenset({STOP_ID}), 10)
    assert search.advance([Candidate(0, 1, -0.1), Candidate(0, STOP_ID, -0.2)])
    assert not search.finished


def test_without_candidates_the_search_ends() -> None:
    search = BeamSearch(2, frozenset(), 10)
    assert search.advance([]) == [] and search.finished == []


def test_the_diversity_rate_is_subtracted_for_each_better_sibling() -> None:
    """Against the formula of Li et al., 2016, written out over all candidates of random steps."""
    rng = random.Random(1)
    for _ in range(200):
        num_beams, rate = rng.randrange(2, 5), rng.choice([0.0, 0.3, 2.0])
        search = BeamSearch(num_beams, frozenset(), 9, diversity_rate=rate)
        search.tokens = [(beam,) for beam in range(num_beams)]
        search.logprobs = [-rng.random() for _ in range(num_beams)]
        rows = [[total - 4 * rng.random() for _ in range(9)] for total in search.logprobs]
        compared = {
            (beam, token): value - rate * sum(other > value for other in row)
            for beam, row in enumerate(rows)
            for token, value in enumerate(row)
        }
        best = sorted(compared, key=lambda key: -compared[key])[:num_beams]
        candidates = [Candidate(b, t, row[t]) for b, row in enumerate(rows) for t in range(9)]
        rng.shuffle(candidates)
        chosen = search.advance(candidates)
        assert [(one.beam, one.token) for one in chosen] == best
        assert search.logprobs == [rows[beam][token] for beam, token in best]  # without the term


def test_a_diverse_search_ends_with_plain_scores() -> None:
    search = BeamSearch(4, frozenset({STOP_ID}), 5, diversity_rate=3.0)
    for one in run(search):
        total = sum(logprobs_after(one.tokens[:i])[token] for i, token in enumerate(one.tokens))
        assert math.isclose(one.score, total / len(one.tokens), rel_tol=1e-9)
    plain = BeamSearch(4, frozenset({STOP_ID}), 5)
    assert [one.tokens for one in run(plain)] != [one.tokens for one in search.finished]
