"""SmolLM2-135M end to end on the CPU, against transformers on the same weights."""

from pathlib import Path

import pytest
import torch
import transformers

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.convert.convert import convert
from tests.support import tiny
from tests.support.worker_processes import generate_concurrently

CHATS = [
    [{"role": "user", "content": "Why is the sky blue? One sentence."}],
    [{"role": "user", "content": "Write a Python function that adds two numbers."}],
    [{"role": "system", "content": "You answer in French."}, {"role": "user", "content": "Hello!"}],
    [
        {"role": "user", "content": "Name three colors."},
        {"role": "assistant", "content": "Red, green and blue."},
        {"role": "user", "content": "Now three animals, as a list."},
    ],
]


@pytest.fixture(scope="module")
def tokenizer(smollm2_f32: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_f32)


@pytest.fixture(scope="module")
def engine(smollm2_f32: Path) -> Engine:
    return build_engine(smollm2_f32, EngineConfig(device="cpu"))


@pytest.fixture(scope="module")
def answers(engine: Engine, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the greedy answers to all chats in one batch, of at most 64 tokens."""
    prompts = {i: tokenizer.prompt(chat).ids for i, chat in enumerate(CHATS)}
    ids = tiny.run(engine, prompts, greedy(tokenizer, 64))[0]
    return [ids[i] for i in range(len(CHATS))]


@pytest.fixture(scope="module")
def expected(
    answers: list[list[int]], tokenizer: Tokenizer, smollm2_f32: Path
) -> list[torch.Tensor]:
    """Return transformers' logits from the last token of each prompt to the end of its answer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_f32, dtype=torch.float32)
    prompts = [tokenizer.prompt(chat).ids for chat in CHATS]
    with torch.inference_mode():
        return [
            model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 :]
            for ids, answer in zip(prompts, answers, strict=True)
        ]


def greedy(tokenizer: Tokenizer, max_tokens: int) -> SamplingParams:
    stop_ids = tuple(tokenizer.eos_ids)
    return SamplingParams(temperature=0, max_tokens=max_tokens, stop_ids=stop_ids)


def test_template_ids_equal_transformers(tokenizer: Tokenizer, smollm2_f32: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_f32)
    for chat in CHATS:
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert tokenizer.prompt(chat).ids == expected


def test_logits_equal_transformers(
    expected: list[torch.Tensor], tokenizer: Tokenizer, smollm2_f32: Path
) -> None:
    """Differences of at most 1e-3: logits reach 30, and fp32 dot products of 1,536 lose 1e-5."""
    bench = tiny.Bench(smollm2_f32, num_blocks=16, block_size=64)
    for chat, logits in zip(CHATS, expected, strict=True):
        found = bench.last_logits(tokenizer.prompt(chat).ids)
        assert (found - logits[0]).abs().max() <= 1e-3, chat


def test_64_greedy_tokens_equal_transformers(
    answers: list[list[int]], expected: list[torch.Tensor], tokenizer: Tokenizer
) -> None:
    """Each id is that of the largest logit behind the ids before it, of one pass over all."""
    for chat, answer, logits in zip(CHATS, answers, expected, strict=True):
        *ids, following = logits.argmax(-1).tolist()
        assert answer == ids, chat
        assert len(ids) == 64 or following in tokenizer.eos_ids, chat


def test_chats_alone_equal_batched(
    engine: Engine, tokenizer: Tokenizer, answers: list[list[int]]
) -> None:
    for i in (0, 3):
        ids = tokenizer.prompt(CHATS[i]).ids
        alone = tiny.run(engine, {1: ids}, greedy(tokenizer, 24))[0]
        assert alone[1] == answers[i][:24]


def test_a_second_turn_with_prefix_reuse_equals_one_prefill(
    engine: Engine, tokenizer: Tokenizer, smollm2_f32: Path
) -> None:
    params = greedy(tokenizer, 32)
    turn = [{"role": "user", "content": "Tell me about the Moon in two sentences."}]
    first = tokenizer.prompt(turn).ids
    answer, _ = tiny.run(engine, {1: first}, params)
    turn += [
        {"role": "assistant", "content": tokenizer.decode(answer[1])},
        {"role": "user", "content": "And the Sun?"},
    ]
    second = tokenizer.prompt(turn).ids
    with_reuse, ends = tiny.run(engine, {2: second}, params)
    fresh, fresh_ends = tiny.run(
        build_engine(smollm2_f32, EngineConfig(device="cpu")), {2: second}, params
    )
    assert with_reuse[2] == fresh[2]
    assert ends[2].cached_tokens >= len(first) + len(answer[1]) - 1
    assert fresh_ends[2].cached_tokens == 0


def test_bf16_answers_a_question_correctly(smollm2: Path) -> None:
    tokenizer = Tokenizer.load(smollm2)
    engine = build_engine(smollm2, EngineConfig(device="cpu"))
    assert engine.info.dtype == "bfloat16"
    ids = tokenizer.prompt([{"role": "user", "content": "What is the capital of France?"}]).ids
    answer, _ = tiny.run(engine, {1: ids}, greedy(tokenizer, 24))
    assert "Paris" in tokenizer.decode(answer[1])


def test_three_tensor_parallel_ranks_answer_as_one(
    smollm2_f32: Path, engine: Engine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Nine heads and three KV heads, from files sharded for --tp 3."""
    convert(smollm2_f32, tmp_path / "sharded", dtype="float32", tp=3)
    prompts = {1: tokenizer.prompt(CHATS[0]).ids, 2: tokenizer.prompt(CHATS[3]).ids}
    params = SamplingParams(temperature=0, max_tokens=16)
    expected, _ = tiny.run(engine, prompts, params)

    config = EngineConfig(device="cpu", tp=3, ctx_size_tokens=256)
    with EngineClient(config, tmp_path / "sharded") as client:
        assert generate_concurrently(client, list(prompts.values()), params) == list(
            expected.values()
        )


def test_two_pipeline_stages_answer_as_one(
    smollm2_f32: Path, engine: Engine, tokenizer: Tokenizer
) -> None:
    prompts = {1: tokenizer.prompt(CHATS[0]).ids, 2: tokenizer.prompt(CHATS[3]).ids}
    params = SamplingParams(temperature=0, max_tokens=16)
    expected, _ = tiny.run(engine, prompts, params)
    config = EngineConfig(device="cpu", pp=2, ctx_size_tokens=256, chunk_tokens=16)
    with EngineClient(config, smollm2_f32) as client:
        assert generate_concurrently(client, list(prompts.values()), params) == list(
            expected.values()
        )
