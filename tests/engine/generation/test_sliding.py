"""Answers longer than the context: what follows equals the answer to a prompt of the kept ids."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Dropped, Finished, Tokens
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.sliding import drop_middle
from swiftchat.errors import UsageError
from tests.support import tiny

CONTEXT, KEPT, LENGTH = 48, 6, 150
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, overflow="sliding", overflow_keep=KEPT)
SAMPLED = replace(GREEDY, temperature=1.2, top_p=0.9, seed=2**64 - 2)
PARAMS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "penalties": replace(SAMPLED, repeat_penalty=1.4, presence_penalty=0.8, frequency_penalty=0.3),
    "window": replace(GREEDY, repeat_penalty=1.5, repeat_last_n=9, no_repeat_ngram=3),
    "dry": replace(GREEDY, dry_multiplier=1.0, logit_bias=((5, 3.0),)),
    # Without the minimum, the frequent token 7 would end the answer.
    "min_tokens": replace(GREEDY, stop_ids=(7,), logit_bias=((7, 100.0),), min_tokens=120),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def engine(llama: Path) -> Engine:
    return tiny.engine(llama, ctx_size_tokens=CONTEXT)


def slide(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[list[int], list[int]]:
    """Return the ids of an answer, and how many tokens each full context has dropped."""
    engine.add(1, prompt, params)
    ids: list[int] = []
    dropped: list[int] = []
    while engine.has_work:
        for _, event in engine.step():
            engine.scheduler.check_integrity()
            match event:
                case Tokens():
                    ids += event.ids
                case Dropped():
                    dropped.append(event.num_tokens)
                case Finished():
                    assert event.completion_tokens == len(ids)
                    assert event.prompt_tokens == len(prompt)
    return ids, dropped


def by_prompts(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    """Return the same ids from one prompt after another, each made of the ids that are kept."""
    assert params.max_tokens is not None
    ids, kept, num_prompt, seed = [], list(prompt), len(prompt), params.seed or 0
    while True:
        num_gone = len(ids) - (len(kept) - num_prompt)
        rest = replace(
            params,
            overflow="error",
            seed=seed % 2**64,
            max_tokens=params.max_tokens - num_gone,
            min_tokens=max(0, params.min_tokens - num_gone),
        )
        engine.add(1, kept, rest)
        # Penalties and limits count the kept ids of the answer as generated ones.
        engine.generations.by_id[1].sequence.num_prompt = num_prompt
        found: list[int] = []
        while engine.has_work:
            tokens = [event for _, event in engine.step() if isinstance(event, Tokens)]
            found += [token for event in tokens for token in event.ids]
        ids, kept, seed = ids + found, kept + found, seed + 1
        if len(kept) < CONTEXT or len(ids) == params.max_tokens:
            return ids
        window = kept[CONTEXT - (CONTEXT - KEPT) // 2 :]
        num_prompt = min(KEPT, num_prompt) + max(0, num_prompt - (CONTEXT - len(window)))
        kept = kept[:KEPT] + window


@pytest.mark.parametrize("name", PARAMS)
def test_an_answer_equals_those_to_prompts_of_the_kept_ids(engine: Engine, name: str) -> None:
    params = PARAMS[name]
    for length in (3, 40):  # shorter and longer than what is kept
        prompt = tiny.random_ids(length, seed=length)
        ids, dropped = slide(engine, prompt, params)
        assert dropped == [21] * len(dropped) and len(dropped) >= 3
        assert ids == by_prompts(engine, prompt, params)
        assert len(ids) == (params.min_tokens or LENGTH)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "gemma2"])
def test_learned_positions_alibi_and_windows(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    for kernels in (True, False):
        engine = tiny.engine(tmp_path, ctx_size_tokens=CONTEXT, kernels=kernels)
        prompt = tiny.random_ids(20)
        ids, dropped = slide(engine, prompt, SAMPLED)
        assert len(dropped) > 4 and ids == by_prompts(engine, prompt, SAMPLED)


@pytest.mark.parametrize("kv_dtype", ["int8", "int5"])
def test_a_quantized_cache_slides(llama: Path, kv_dtype: str) -> None:
    for kernels in (True, False):
        config = {"ctx_size_tokens": CONTEXT, "kernels": kernels, "kv_dtype": kv_dtype}
        engine, prompt = tiny.engine(llama, **config), tiny.random_ids(20)
        ids, dropped = slide(engine, prompt, SAMPLED)
        assert len(dropped) > 4 and ids == by_prompts(engine, prompt, SAMPLED)


def test_answers_together_equal_answers_alone(llama: Path) -> None:
    """More answers than blocks: some are preempted, also while they are computed again."""
    engine = tiny.engine(llama, ctx_size_tokens=CONTEXT, cache_tokens=120, chunk_tokens=13)
    prompts = {key: tiny.random_ids(8 * key, seed=key) for key in (1, 2, 3, 4)}
    alone = {key: slide(engine, prompt, SAMPLED)[0] for key, prompt in prompts.items()}
    preempt, preempted = engine.scheduler.preempt, []
    engine.scheduler.preempt = lambda one: (preempted.append(one.num_slides), preempt(one))[1]
    together, ends = tiny.run(engine, prompts, SAMPLED)
    assert together == alone and max(preempted) > 0
    assert {end.reason for end in ends.values()} == {"length"}


def test_a_kept_prefix_is_found_in_the_cache(llama: Path) -> None:
    engine = tiny.engine(llama, ctx_size_tokens=CONTEXT)
    params = replace(GREEDY, overflow_keep=24, max_tokens=60)
    slide(engine, tiny.random_ids(30), params)
    computed = engine.stats()["computed_tokens"]
    slides = -(-(30 + 60 - CONTEXT) // 12)
    # Each full context computes its 12 newest tokens again, but not the first 24.
    assert computed <= 30 + 60 + slides * 12


def test_a_canceled_and_an_ended_answer(engine: Engine) -> None:
    engine.add(1, tiny.random_ids(40), GREEDY)
    events: list[object] = []
    while not any(isinstance(event, Dropped) for event in events):
        events += [event for _, event in engine.step()]
    engine.cancel(1)
    ((_, end),) = engine.step()
    assert end == replace(end, reason="interrupt", prompt_tokens=40, completion_tokens=8)
    assert not engine.has_work and engine.stats()["used_blocks"] == 0


def test_an_answer_that_ends_with_the_context_drops_nothing(engine: Engine) -> None:
    ids, dropped = slide(engine, tiny.random_ids(40), replace(GREEDY, max_tokens=8))
    assert len(ids) == 8 and not dropped


def test_a_context_that_cannot_slide_is_a_usage_error(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="25 kept tokens are more than half of the context of 48"):
        engine.add(1, [3], replace(GREEDY, overflow_keep=25))
    tiny.make("chatglm-6b", tmp_path)
    with pytest.raises(UsageError, match="bidirectional"):
        tiny.engine(tmp_path).add(1, [3], GREEDY)


@settings(deadline=None)
@given(st.data())
def test_any_sequence_keeps_its_first_and_newest_tokens(data: st.DataObject) -> None:
    length = data.draw(st.integers(4, 60))
    num_prompt, kept = data.draw(st.integers(1, length - 1)), data.draw(st.integers(0, length // 2))
    sequence = TokenSequence(
        1, list(range(num_prompt)), replace(GREEDY, min_tokens=9, max_tokens=99)
    )
    sequence.tokens += range(num_prompt, length)
    num_dropped = drop_middle(sequence, kept)
    newest = (length - kept) // 2
    assert sequence.tokens == [*range(kept), *range(length - newest, length)] and newest >= 1
    assert num_dropped == length - len(sequence.tokens)
    assert sequence.num_prompt == sum(token < num_prompt for token in sequence.tokens)
    gone = num_dropped - (num_prompt - sequence.num_prompt)
    assert sequence.num_dropped_generated == gone
    assert sequence.num_left == 99 - (length - num_prompt)
    assert sequence.params.min_tokens == max(0, 9 - gone)


@pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")
def test_several_ranks(engine: Engine, llama: Path) -> None:
    prompt = tiny.random_ids(20, seed=5)
    config = EngineConfig(
        device="cpu", dtype="float32", num_threads=1, tp=2, pp=2, ctx_size_tokens=CONTEXT
    )
    with EngineClient(config, llama) as client:
        events = list(client.generate(prompt, SAMPLED))
    ids = [i for event in events if isinstance(event, Tokens) for i in event.ids]
    dropped = [event.num_tokens for event in events if isinstance(event, Dropped)]
    assert (ids, dropped) == slide(engine, prompt, SAMPLED)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_captured_and_other_steps_of_a_gpu(name: str, tmp_path: Path) -> None:
    """No step is in flight when a context is full: the token that fills it is the last one."""
    tiny.make(name, tmp_path)
    engine = tiny.engine(tmp_path, device="cuda", ctx_size_tokens=CONTEXT)
    prompt = tiny.random_ids(20)
    for params in (GREEDY, PARAMS["penalties"], PARAMS["min_tokens"], PARAMS["dry"]):
        ids, dropped = slide(engine, prompt, params)
        assert len(dropped) > 3 and ids == by_prompts(engine, prompt, params)
    prompts = {key: tiny.random_ids(8 * key, seed=key) for key in (1, 2, 3)}
    alone = {key: slide(engine, prompt, SAMPLED)[0] for key, prompt in prompts.items()}
    assert tiny.run(engine, prompts, SAMPLED)[0] == alone
