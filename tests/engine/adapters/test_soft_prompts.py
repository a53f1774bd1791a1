"""Soft prompts against PEFT on the same random models, in fp32; tolerance as in test_lora."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from swiftchat.engine.adapters import tunings
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.generations import Outcome
from swiftchat.errors import BadModelFile, ContextOverflow, OutOfMemory, UsageError
from swiftchat.weights.adapters.soft_prompt import SoftPrompt
from swiftchat.weights.architectures.parts.model import ModelConfig
from tests.support import adapters, tiny

NUM_TOKENS = 9
NUM_VIRTUAL = 6  # one block of four and a half
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-prompt": ("llama", "PromptTuningConfig", {}),
    "gpt2-p-tuning": ("gpt2", "PromptEncoderConfig", {"encoder_hidden_size": 32}),
    "gemma2-prompt": ("gemma2", "PromptTuningConfig", {}),
    "llama-prefix": ("llama", "PrefixTuningConfig", {}),
    "qwen2-prefix-projection": ("qwen2", "PrefixTuningConfig", {"prefix_projection": True}),
    "glm-prefix": ("glm", "PrefixTuningConfig", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_peft(case: str, tmp_path: Path) -> None:
    family, kind, settings = CASES[case]
    reference = tiny.make_with_reference(family, tmp_path)
    folder, model = adapters.make_soft_prompt(
        tmp_path / "prompt", reference, kind, NUM_VIRTUAL, **settings
    )
    ids = tiny.random_ids(NUM_TOKENS)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0][-NUM_TOKENS:]
        plain = reference(torch.tensor([ids])).logits[0]
    for kernels in (True, False):
        engine = tiny.engine(tmp_path, kernels=kernels)
        tuning = Tuning(soft_prompt=str(folder))
        # Together with a sequence without it, and again with its blocks in the cache.
        for _ in range(2):
            ours, base = adapters.logits(engine, [(ids, tuning), (ids, None)])
            assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
            assert (base - plain).abs().max() <= 1e-4 * plain.abs().max()


@tiny.each_backend
@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_answers_share_the_blocks_of_a_soft_prompt(kind: str, native: bool, tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    folder, _ = adapters.make_soft_prompt(tmp_path / "prompt", reference, kind, NUM_VIRTUAL)
    tuning = Tuning(soft_prompt=str(folder))
    prompts = [[5, *tiny.random_ids(6, seed=seed)] for seed in range(3)] + [[7]]
    alone = [
        adapters.greedy(tiny.engine(tmp_path, kernels=native), [(ids, tuning)])[0]
        for ids in prompts
    ]
    engine = tiny.engine(tmp_path, kernels=native, kv_dtype="auto")
    for _ in range(2):
        assert adapters.greedy(engine, [(ids, tuning) for ids in prompts]) == alone
    events = adapters.finished(engine, prompts[0], tuning)
    assert events["prompt_tokens"] == len(prompts[0]) and events["cached_tokens"] > 0
    params = tiny.SamplingParams()
    with pytest.raises(ContextOverflow, match="the soft prompt 6"):
        engine.add(1, [5] * (engine.ctx_size_tokens - NUM_VIRTUAL), params, tuning=tuning)


@pytest.mark.parametrize("failing", ["copy_blocks", "store_virtual"])
def test_a_failed_step_leaves_no_block_that_it_did_not_write(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next answers compute again what the failed step should have stored or copied."""
    reference = tiny.make_with_reference("llama", tmp_path)
    folder, _ = adapters.make_soft_prompt(
        tmp_path / "prompt", reference, "PrefixTuningConfig", 2 * tiny.BLOCK_SIZE
    )
    tuning = Tuning(soft_prompt=str(folder))
    first, ids = tiny.random_ids(14), [*tiny.random_ids(10), 3, 4, 5]
    requests = [(ids, tuning), (ids, None)]
    expected = adapters.greedy(tiny.engine(tmp_path), requests)
    engine = tiny.engine(tmp_path)
    for tensor in engine.cache.tensors:  # unwritten slots must never be read
        tensor.fill_(float("nan"))
    adapters.greedy(engine, [(first, None)])

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    engine.add(1, ids, tiny.SamplingParams(), tuning=tuning)
    engine.add(2, ids, tiny.SamplingParams())
    owner = engine.decoder.ops if failing == "copy_blocks" else tunings
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(owner, failing, fails)
        engine.step()
    engine.abort_all(OutOfMemory("no memory"))
    engine.scheduler.check_integrity()
    allocator, num_sources = engine.allocator, 4  # blocks of the first prompt, used least recently
    allocator.release([allocator.allocate() for _ in range(allocator.num_free + num_sources)])
    assert adapters.greedy(engine, requests) == expected


def test_answers_in_a_small_cache_are_those_of_a_large_one(tmp_path: Path) -> None:
    """Blocks are evicted in most steps, also for virtual tokens that are stored in the step."""
    tiny.make("llama", tmp_path)
    prompts = [tiny.random_ids(length, seed=length) for length in (13, 1, 30, 18)]
    tunings: list[Tuning | None] = [None]
    for number in range(4):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        folder, _ = adapters.make_soft_prompt(
            tmp_path / str(number), model, "PrefixTuningConfig", 3 + number
        )
        tunings.append(Tuning(soft_prompt=str(folder)))
    large, small = (tiny.engine(tmp_path, cache_tokens=size) for size in (4096, 256))
    expected = {
        (i, tuning): adapters.greedy(large, [(ids, tuning)])[0]
        for i, ids in enumerate(prompts)
        for tuning in tunings
    }
    choose = random.Random(0)
    for _ in range(100):
        requests = [(i, choose.choice(tunings)) for i in (0, 1, 2, 3, 0, 1, 2, 3)]
        choose.shuffle(requests)
        found = adapters.greedy(small, [(prompts[i], tuning) for i, tuning in requests])
        assert found == [expected[request] for request in requests]


def test_only_the_last_soft_prompts_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tiny.make_with_reference("llama", tmp_path / "model")
    engine = tiny.engine(tmp_path / "model")
    opened, open_soft_prompt = list[str](), tunings.open_soft_prompt

    def opening(path: Path, config: ModelConfig) -> SoftPrompt:
        opened.append(path.name)
        return open_soft_prompt(path, config)

    monkeypatch.setattr(tunings, "open_soft_prompt", opening)
    monkeypatch.setattr(tunings, "MAX_PROMPTS", 2)
    folders = {
        name: adapters.make_soft_prompt(
            tmp_path / name, reference, "PromptTuningConfig", NUM_VIRTUAL
        )[0]
        for name in "abc"
    }
    for name in "abacacb":  # b gives way to c, then a to b
        engine.tune(Tuning(soft_prompt=str(folders[name])))
    assert "".join(opened) == "abcb"


@pytest.mark.fault(48)
def test_wrong_soft_prompts_are_named(tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path / "model")
    folder, _ = adapters.make_soft_prompt(
        tmp_path / "prompt", reference, "PromptTuningConfig", NUM_VIRTUAL
    )
    tuning = Tuning(soft_prompt=str(folder))
    tiny.make("gpt2", tmp_path / "other")
    engine = tiny.engine(tmp_path / "model")
    adapters.change_settings(folder, num_virtual_tokens=5)
    with pytest.raises(BadModelFile, match=r"prompt_embeddings: expected \[5, 48\], found \[6, 48"):
        engine.tune(tuning)
    for changes, named in (
        ({"num_virtual_tokens": 0}, "num_virtual_tokens"),
        ({"num_virtual_tokens": 6, "new_key": True}, "new_key"),
        ({"new_key": None, "peft_type": "LORA"}, "LORA"),
        ({"peft_type": "PREFIX_TUNING"}, r"\[6, 96\], found \[6, 48\]"),
    ):
        adapters.change_settings(folder, **changes)
        with pytest.raises(BadModelFile, match=named) as error:
            engine.tune(tuning)
        assert error.value.exit_code == 7


@tiny.each_backend
@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_a_sliding_context_keeps_the_soft_prompt(kind: str, native: bool, tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    folder, _ = adapters.make_soft_prompt(tmp_path / "prompt", reference, kind, NUM_VIRTUAL)
    tuning, context, prompt = Tuning(soft_prompt=str(folder)), 48, tiny.random_ids(20)
    engine = tiny.engine(tmp_path, kernels=native, ctx_size_tokens=context)

    def answer(ids: list[int], **changes: Any) -> list[int]:
        params = tiny.SamplingParams(temperature=0, **changes)
        engine.add(1, ids, params, tuning=tuning)
        events = [event for _, event in steps(engine) if isinstance(event, Tokens)]
        return [token for event in events for token in event.ids]

    room = context - NUM_VIRTUAL - len(prompt)
    found = answer(prompt, max_tokens=room + 10, overflow="sliding", overflow_keep=4)
    newest = (context - NUM_VIRTUAL - 4) // 2
    kept = prompt[:4] + (prompt + found[:room])[-newest:]
    assert found[room:] == answer(kept, max_tokens=10)
    with pytest.raises(UsageError, match="the soft prompt fills more than half of the context"):
        small = tiny.engine(tmp_path, kernels=native, ctx_size_tokens=2 * NUM_VIRTUAL - 1)
        params = tiny.SamplingParams(overflow="sliding", overflow_keep=0)
        small.add(1, [5], params, tuning=tuning)


def steps(engine: Engine) -> Iterator[Outcome]:
    while engine.has_work:
        yield from engine.step()
