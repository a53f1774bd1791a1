"""ChatGLM-6B's bidirectional prompts, which are cached only for the same prompt.

Tolerance as in `test_architectures.py`: 1e-4 of the largest logit.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.weights.architectures.parts.prefix_lm import BidirectionalPrefix, PrefixLM
from tests.support import tiny
from tests.support.tiny_chatglm import GMASK, MASK, START, ChatGLM, make

QUESTION = [*tiny.random_ids(17, seed=1), GMASK, START]
PREFIX_LM = PrefixLM(START, (GMASK, MASK))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ChatGLM]:
    folder = tmp_path_factory.mktemp("chatglm-6b")
    return folder, make(folder, tiny.VOCAB_SIZE)


def expected(reference: ChatGLM, ids: Sequence[int]) -> torch.Tensor:
    return reference(torch.tensor([ids])).logits[0]


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert (ours - reference).abs().max() <= 1e-4 * reference.abs().max()


def sequence(key: int, prompt: Sequence[int]) -> TokenSequence:
    return TokenSequence(key, list(prompt), SamplingParams(), PREFIX_LM.prefix_of(prompt))


@tiny.each_backend
def test_prefix_is_prefilled_at_once_and_answer_decoded_token_by_token(model, native: bool) -> None:
    """The prefix has 18 tokens, more than a chunk of 7."""
    folder, reference = model
    bench = tiny.Bench(folder, chunk_tokens=7, native=native)
    ours = sequence(1, QUESTION)
    bench.scheduler.add(ours)
    for token in tiny.random_ids(9, seed=2):
        logits: dict[int, torch.Tensor] = {}
        while not logits:
            logits = bench.step()
        assert_close(logits[1], expected(reference, ours.tokens)[-1])
        ours.tokens.append(token)


@tiny.each_backend
def test_long_answer_after_the_prefix_is_prefilled_in_chunks(model, native: bool) -> None:
    folder, reference = model
    ids = QUESTION + tiny.random_ids(20, seed=3)
    bench = tiny.Bench(folder, chunk_tokens=7, native=native)
    bench.scheduler.add(sequence(1, ids))
    steps = 0
    while not (logits := bench.step()):
        steps += 1
    assert steps == 3  # 18 at once, then 7 and 7 of the other 21
    assert_close(logits[1], expected(reference, ids)[-1])


@tiny.each_backend
def test_mask_token_within_the_prompt_equals_reference(model, native: bool) -> None:
    folder, reference = model
    ids = [*tiny.random_ids(4, seed=4), MASK, *tiny.random_ids(6, seed=5), START, 7, 8]
    bench = tiny.Bench(folder, native=native)
    bench.scheduler.add(sequence(1, ids))
    assert_close(bench.step()[1], expected(reference, ids)[-1])


def test_prefix_length_and_mask_position() -> None:
    assert PREFIX_LM.prefix_of([7, 8, GMASK, START, 9, START]) == BidirectionalPrefix(3, 2)
    assert PREFIX_LM.prefix_of([MASK, 8, GMASK, START]) == BidirectionalPrefix(3, 2)
    assert PREFIX_LM.prefix_of([7, MASK, 8, START]) == BidirectionalPrefix(3, 1)
    assert PREFIX_LM.prefix_of([7, 8, START]) == BidirectionalPrefix(2, 1)
    assert PREFIX_LM.prefix_of([START]) == PREFIX_LM.prefix_of([7, GMASK]) == BidirectionalPrefix()


@tiny.each_backend
@pytest.mark.parametrize("grown", [QUESTION[:-2], QUESTION[:8]])
def test_longer_bidirectional_prompt_reuses_no_cached_prefix(
    model, grown: list[int], native: bool
) -> None:
    folder, reference = model
    bench = tiny.Bench(folder, native=native)
    first = sequence(1, QUESTION)
    bench.scheduler.add(first)
    bench.step()
    bench.scheduler.remove(first)
    longer = sequence(2, [*grown, *tiny.random_ids(12, seed=6), GMASK, START])
    bench.scheduler.add(longer)
    assert_close(bench.step()[2], expected(reference, longer.tokens)[-1])
    assert longer.num_cached == 0


@tiny.each_backend
def test_same_bidirectional_prompt_reuses_prefix_and_common_answer(model, native: bool) -> None:
    folder, reference = model
    answer = tiny.random_ids(11, seed=7)
    bench = tiny.Bench(folder, native=native)
    first = sequence(1, QUESTION + answer)
    bench.scheduler.add(first)
    bench.step()
    bench.scheduler.remove(first)
    for key, kept in ((2, 0), (3, 6)):
        again = sequence(key, QUESTION + answer[:kept])
        bench.scheduler.add(again)
        assert_close(bench.step()[key], expected(reference, again.tokens)[-1])
        assert again.num_cached == len(again.tokens) - 1
        bench.scheduler.remove(again)


@tiny.each_backend
def test_partly_evicted_bidirectional_prompt_is_recomputed_whole(model, native: bool) -> None:
    """Eviction starts at the end of a prompt; its first blocks stay in the cache."""
    folder, reference = model
    bench = tiny.Bench(folder, native=native, num_blocks=6, chunk_tokens=3)
    for key, prompt in ((1, QUESTION), (2, [8, 9, 10, 11, 12, GMASK, START]), (3, QUESTION)):
        each = sequence(key, prompt)
        bench.scheduler.add(each)
        logits: dict[int, torch.Tensor] = {}
        while key not in logits:
            logits = bench.step()
        assert_close(logits[key], expected(reference, prompt)[-1])
        bench.scheduler.remove(each)
    assert 0 < each.num_cached < len(QUESTION) - 2


@tiny.each_backend
def test_batched_prompts_of_several_lengths_equal_reference(model, native: bool) -> None:
    """The cache is too small for all: some wait or are preempted."""
    folder, reference = model
    prompts = {
        i: [*tiny.random_ids(5 * i, seed=i), GMASK, START, *tiny.random_ids(i, seed=9)]
        for i in (1, 2, 3, 4)
    }
    engine = tiny.engine(
        folder, ctx_size_tokens=48, cache_tokens=64, chunk_tokens=8, kernels=native
    )
    params = SamplingParams(temperature=0, max_tokens=12)
    ours, _ = tiny.run(engine, prompts, params)
    for i, prompt in prompts.items():
        ids = list(prompt)
        for _ in range(len(ours[i])):
            ids.append(int(expected(reference, ids)[-1].argmax()))
        assert ours[i] == ids[len(prompt) :]
        assert len(ours[i]) == 12 or ours[i][-1] == 2
