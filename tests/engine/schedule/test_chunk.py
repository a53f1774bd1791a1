"""Fairness: a prompt delays the tokens of other answers by at most one chunk of limited size."""

from pathlib import Path

import pytest

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Prefill, Tokens
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.chunk import ChunkLimit, cpu_chunk_limit, gpu_chunk_limit
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Step, TokenSequence
from tests.support import tiny

GREEDY = SamplingParams(temperature=0)


def scheduler_with(limit: ChunkLimit | None) -> Scheduler:
    scheduler = Scheduler(BlockAllocator(2048, 64), 4096, 512)
    scheduler.limit = limit
    return scheduler


def compute(scheduler: Scheduler, duration_s: float = 0.01) -> Step:
    """Compute one step in the given time; each sequence at its end gets a token."""
    step = scheduler.schedule()
    scheduler.measured(step, duration_s)
    ended = [row.sequence for row in step.rows if row.reaches_end]
    for row in step.rows:
        scheduler.advance(row)
    for sequence in ended:
        sequence.tokens.append(5)
    return step


@pytest.mark.fault(50)
def test_a_cpu_limits_every_chunk_to_half_a_second() -> None:
    limit = cpu_chunk_limit(512)
    for num_tokens, duration_s, expected in (
        (64, 0.064, 256),  # 1000 tokens a second
        (256, 0.2, 512),
        (3, 1.0, 512),  # too few tokens to judge
        (512, 4.0, 64),
        (64, 60.0, 32),
    ):
        limit.measured(num_tokens, duration_s)
        assert limit.tokens == expected
    scheduler = scheduler_with(limit)
    scheduler.add(TokenSequence(1, [5] * 1000, GREEDY))
    assert [row.num_tokens for row in compute(scheduler).rows] == [32]


def test_without_a_limit_a_chunk_is_as_large_as_possible() -> None:
    scheduler = scheduler_with(None)
    scheduler.add(TokenSequence(1, [5] * 9000, GREEDY))
    assert [compute(scheduler, 100.0).rows[0].num_tokens for _ in range(3)] == [4096, 4096, 808]


# Seconds of a step: always; for each token; for each token and 1000 tokens before it.
@pytest.mark.parametrize("costs", [(30e-3, 25e-6, 1e-6), (4e-3, 25e-6, 1e-6), (2e-3, 3e-6, 0)])
def test_on_a_gpu_a_prompt_delays_other_answers_by_50_ms(
    costs: tuple[float, float, float],
) -> None:
    """The clock is a model of a GPU: launches, matmuls, and attention to the past."""
    fixed_s, per_token_s, per_past_s = costs
    scheduler = scheduler_with(gpu_chunk_limit(4096))
    answer, prompt = TokenSequence(1, [5] * 100, GREEDY), TokenSequence(2, [6] * 30_000, GREEDY)
    scheduler.add(answer)
    compute(scheduler)
    scheduler.add(prompt)
    delays_s, chunks = [], []
    while prompt.num_generated == 0:
        (first, row) = scheduler.schedule().rows
        assert first.sequence is answer and first.num_tokens == 1
        past = per_past_s * prompt.num_computed / 1000
        delays_s.append(fixed_s + row.num_tokens * (per_token_s + past))
        chunks.append(row.num_tokens)
        step = Step([first, row], [])
        scheduler.measured(step, delays_s[-1])
        for one in step.rows:
            one_ended = one.reaches_end
            scheduler.advance(one)
            if one_ended:
                one.sequence.tokens.append(5)
    assert answer.num_generated == len(chunks) + 1  # a token for each chunk, and one before
    assert max(delays_s) < 0.05
    used = zip(delays_s[6:-1], chunks[6:-1], strict=True)
    assert all(delay > 0.03 or chunk == 4095 for delay, chunk in used), "chunks are not too small"


def test_on_a_gpu_a_prompt_alone_is_not_limited() -> None:
    scheduler = scheduler_with(gpu_chunk_limit(4096))
    scheduler.add(TokenSequence(1, [5] * 9000, GREEDY))
    # Durations without a decode row tell nothing: earlier steps may still be computed.
    assert [compute(scheduler, 3.0).rows[0].num_tokens for _ in range(3)] == [4096, 4096, 808]
    scheduler.add(TokenSequence(2, [6] * 1000, GREEDY))
    assert [row.num_tokens for row in compute(scheduler).rows] == [1, 256]


def test_many_answers_do_not_displace_a_prompt() -> None:
    """Their step takes longer than the limit without any token of the prompt."""
    limit = gpu_chunk_limit(4096)
    limit.measured(256, 1.0)
    assert limit.tokens == 64
    scheduler = scheduler_with(limit)
    for i in range(200):
        scheduler.add(TokenSequence(i, [i], GREEDY))
    compute(scheduler)
    scheduler.add(TokenSequence(300, [6] * 1000, GREEDY))
    assert [row.num_tokens for row in compute(scheduler).rows] == [1] * 200 + [400]


def test_the_end_of_a_prompt_does_not_shrink_chunks() -> None:
    """On a GPU, 100 tokens take as long as 256."""
    limit = gpu_chunk_limit(4096)
    limit.measured(100, 0.04)
    assert limit.tokens == 256
    limit.measured(100, 0.09)
    assert limit.tokens == 64


def test_an_answer_gets_a_token_for_each_chunk_of_a_prompt(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    engine = tiny.engine(tmp_path, chunk_tokens=16)
    engine.add(1, [3], SamplingParams(temperature=0, max_tokens=60))
    engine.step()
    engine.add(2, tiny.random_ids(200), SamplingParams(temperature=0, max_tokens=5))
    num_chunks = 0
    while True:
        events = engine.step()
        answered = [event for key, event in events if key == 1 and isinstance(event, Tokens)]
        assert len(answered) == 1 and len(answered[0].ids) == 1
        if any(key == 2 and isinstance(event, Tokens) for key, event in events):
            break
        assert [key for key, event in events if isinstance(event, Prefill)] == [2]
        num_chunks += 1
    assert num_chunks == 200 // 15  # 15 tokens of the prompt beside one of the answer
