"""Prompt look-up: what it proposes, and that a text without repetitions gets no proposals."""

import random

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.sliding import drop_middle
from swiftchat.engine.speculation.lookup import PromptLookup
from swiftchat.engine.speculation.step_costs import StepCosts

CHEAP, LINEAR = StepCosts(0.05), StepCosts(1.0)
CODE = list(range(100, 160))


def after(prompt: list[int], answer: list[int]) -> PromptLookup:
    lookup, sequence = PromptLookup(), TokenSequence(0, prompt, SamplingParams())
    sequence.tokens = prompt + answer
    assert lookup.follow(sequence)
    return lookup


def test_a_quoted_prompt_is_continued() -> None:
    assert after(CODE, CODE[:20]).propose(CHEAP, 1, 8) == CODE[20:28]


def test_no_more_is_proposed_than_asked_for() -> None:
    assert after(CODE, CODE[:20]).propose(CHEAP, 1, 3) == CODE[20:23]
    assert after(CODE, CODE[:20]).propose(CHEAP, 1, 0) == []


def test_nothing_is_proposed_where_rows_cost_as_much_as_steps() -> None:
    assert after(CODE, CODE[:20]).propose(LINEAR, 1, 8) == []


def test_an_answer_without_repetitions_gets_no_proposals() -> None:
    numbers = random.Random(1)
    answer = [numbers.randrange(50) for _ in range(400)]  # many short matches, all by chance
    assert after(CODE, answer).propose(CHEAP, 1, 8) == []


def test_a_rejected_repetition_is_proposed_less_and_less() -> None:
    """Each round repeats three ids of the prompt, then goes on with another id."""
    prompt, answer, lengths = list(range(40)), list[int](), []
    for i in range(60):
        start = i * 7 % 36
        answer += prompt[start : start + 3]
        lengths.append(len(after(prompt, answer).propose(CHEAP, 1, 8)))
        answer.append(1000 + i)
    assert max(lengths[:3]) > 0
    assert lengths[-10:] == [0] * 10


def test_a_long_prompt_is_followed_in_parts() -> None:
    lookup, prompt = PromptLookup(), TokenSequence(0, list(range(10_000)), SamplingParams())
    calls = 1
    while not lookup.follow(prompt):
        calls += 1
    assert calls == 3
    assert lookup.propose(CHEAP, 1, 8) == []


def test_a_context_that_slides_keeps_what_was_followed() -> None:
    sequence, lookup = TokenSequence(0, list(CODE), SamplingParams(max_tokens=50)), PromptLookup()
    sequence.tokens += CODE[:10]
    lookup.follow(sequence)
    drop_middle(sequence, 4)
    sequence.tokens += CODE[10:20]
    assert lookup.follow(sequence)
    assert lookup.propose(CHEAP, 1, 8) == CODE[20:28]


def test_measured_durations_give_the_cost_of_rows() -> None:
    costs = StepCosts(0.2)
    for _ in range(100):
        costs.measured(1, 0.010)
        costs.measured(5, 0.016)
    assert abs(costs.cost(5) - 1.6) < 0.01
    costs.measured(1, 10.0)  # a step that was delayed
    assert costs.cost(5) > 1.4
