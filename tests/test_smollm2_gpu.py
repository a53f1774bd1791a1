"""SmolLM2-135M in fp32 on a GPU: the ids of the CPU engine, on the same weights.

Logits of the two differ by less than 1e-4. In all these answers the largest logit is at least 1e-3
above the second one, by a computation in fp64.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.tokenizer import Tokenizer
from tests.support import tiny

pytestmark = pytest.mark.gpu
QUESTIONS = (
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "Name three colors of the rainbow.",
    "What is the capital of France?",
    "Explain photosynthesis in one sentence.",
    "Translate 'good morning' to Spanish.",
    "Write a haiku about the sea.",
    "How many days are in a leap year?",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "List four planets of the solar system.",
    "Who wrote Romeo and Juliet?",
    "Tell me a short story about a fox.",
    "What is 17 plus 25?",
    "Describe a rainy day in a city.",
    "How do I boil an egg?",
    "What is the difference between a lake and a river?",
    "Write an email to invite a friend to dinner.",
    "Why do cats purr?",
    "Summarize what a bicycle is for.",
)
Prompts = dict[int, Sequence[int]]


@pytest.fixture(scope="module")
def tokenizer(smollm2_f32: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_f32)


@pytest.fixture(scope="module")
def cpu(smollm2_f32: Path) -> Engine:
    return engine(smollm2_f32, "cpu")


@pytest.fixture(scope="module")
def gpu_engine(smollm2_f32: Path) -> Engine:
    return engine(smollm2_f32, "cuda")


def engine(folder: Path, device: str) -> Engine:
    config = EngineConfig(
        device=device, dtype="float32", ctx_size_tokens=512, cache_tokens=8192, max_num_seqs=32
    )
    return build_engine(folder, config)


@pytest.fixture(scope="module")
def params(tokenizer: Tokenizer) -> SamplingParams:
    stop_ids = tuple(tokenizer.eos_ids)
    return SamplingParams(temperature=0, max_tokens=48, stop_ids=stop_ids, speculate="off")


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> Prompts:
    chats = ([{"role": "user", "content": question}] for question in QUESTIONS)
    return {i: list(tokenizer.prompt(chat).ids) for i, chat in enumerate(chats)}


@pytest.fixture(scope="module")
def second_turns(prompts: Prompts, expected: dict[int, list[int]], tokenizer: Tokenizer) -> Prompts:
    """The prompts, answers of the CPU, and a further question."""
    found: Prompts = {}
    for i, question in enumerate(QUESTIONS):
        chat = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": tokenizer.decode(expected[i])},
            {"role": "user", "content": "Say it in other words."},
        ]
        found[i] = list(tokenizer.prompt(chat).ids)
    return found


@pytest.fixture(scope="module")
def expected(cpu: Engine, prompts: Prompts, params: SamplingParams) -> dict[int, list[int]]:
    return tiny.run(cpu, prompts, params)[0]


@pytest.mark.parametrize("speculate", ["off", "auto"])
def test_each_answer_alone(
    gpu_engine: Engine,
    prompts: Prompts,
    params: SamplingParams,
    expected: dict[int, list[int]],
    speculate: str,
) -> None:
    params = replace(params, speculate=speculate)
    for i, ids in prompts.items():
        assert tiny.run(gpu_engine, {i: ids}, params)[0] == {i: expected[i]}


def test_all_answers_together(
    gpu_engine: Engine, prompts: Prompts, params: SamplingParams, expected: dict[int, list[int]]
) -> None:
    assert tiny.run(gpu_engine, prompts, params)[0] == expected


def test_second_turns(
    gpu_engine: Engine,
    cpu: Engine,
    prompts: Prompts,
    second_turns: Prompts,
    params: SamplingParams,
) -> None:
    """With the first turns in the prefix cache of both."""
    tiny.run(gpu_engine, prompts, params)
    answers, _ = tiny.run(cpu, second_turns, params)
    found, ends = tiny.run(gpu_engine, second_turns, params)
    assert found == answers
    assert all(ends[i].cached_tokens >= len(prompt) for i, prompt in prompts.items())
