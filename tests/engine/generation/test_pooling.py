"""Embeddings of prompts, against the last hidden states of transformers on the same weights."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import POOLINGS, EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Embedding, Finished, Tokens
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import BadModelFile, ContextOverflow, UsageError
from tests.support import tiny

FAMILIES = ("llama", "gpt2", "opt-350m", "bloom", "gemma2", "olmo2", "qwen3-moe", "falcon-7b")
MEAN = SamplingParams(max_tokens=0, pooling="mean")
ANSWERED = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, tiny.make_with_reference("llama", folder)


def embed(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[torch.Tensor]:
    for key, prompt in enumerate(prompts):
        engine.add(key, prompt, params)
    found: dict[int, torch.Tensor] = {}
    ended: list[int] = []
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, Embedding):
                assert key not in found
                found[key] = torch.tensor(event.values)
            if isinstance(event, Finished):
                assert key in found and event.completion_tokens == 0
                assert event.prompt_tokens == len(prompts[key])
                ended.append(key)
    assert sorted(ended) == list(range(len(prompts)))
    return [found[key] for key in range(len(prompts))]


@torch.inference_mode()
def expected(reference: torch.nn.Module, prompt: list[int], pooling: str) -> torch.Tensor:
    hidden = reference.base_model(torch.tensor([prompt])).last_hidden_state[0]
    return {"mean": hidden.mean(0), "sum": hidden.sum(0), "last": hidden[-1]}[pooling]


def assert_close(found: torch.Tensor, reference: torch.Tensor) -> None:
    """Differences of 1e-5 of the largest value: fp32 sums in another order."""
    assert found.shape == reference.shape
    assert (found - reference).abs().max() <= 1e-5 * reference.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_embeddings_equal_transformers(name: str, tmp_path: Path) -> None:
    """Prompts of one and of several chunks, by the native kernels and by torch's operators."""
    reference = tiny.make_with_reference(name, tmp_path)
    prompts = [tiny.random_ids(n, seed=n) for n in (50, 1, 16, 23)]
    for kernels in (True, False):
        engine = tiny.engine(tmp_path, chunk_tokens=16, kernels=kernels)
        for pooling in POOLINGS:
            found = embed(engine, prompts, replace(MEAN, pooling=pooling))
            for prompt, values in zip(prompts, found, strict=True):
                assert_close(values, expected(reference, prompt, pooling))


def test_answers_and_cached_prompts_do_not_change_an_embedding(llama) -> None:
    """An answer in progress gets its tokens meanwhile, and the embedding those of the prompt."""
    folder, reference = llama
    prompt = tiny.random_ids(60)
    engine = tiny.engine(folder, chunk_tokens=16)
    alone, _ = tiny.run(engine, {1: prompt}, ANSWERED)
    for pooling in POOLINGS:
        engine.add(1, prompt, ANSWERED)
        engine.add(2, prompt, replace(MEAN, pooling=pooling))
        ids: list[int] = []
        while engine.has_work:
            for key, event in engine.step():
                if isinstance(event, Tokens):
                    assert key == 1
                    ids += event.ids
                if isinstance(event, Embedding):
                    assert_close(torch.tensor(event.values), expected(reference, prompt, pooling))
        assert ids == alone[1]


def test_preempted_prompts_are_pooled_once(llama) -> None:
    """Two answers take the blocks of a prompt whose first chunks are already part of the sum."""
    folder, reference = llama
    engine = tiny.engine(folder, chunk_tokens=12, cache_tokens=160, ctx_size_tokens=160)
    answered = SamplingParams(temperature=0, max_tokens=60)
    for key in (1, 2):
        engine.add(key, tiny.random_ids(8, seed=key), answered)
    prompt = tiny.random_ids(120, seed=9)
    preempt, preempted = engine.scheduler.preempt, []
    engine.scheduler.preempt = lambda one: (preempted.append(one.num_pooled), preempt(one))[1]
    engine.step()
    engine.step()
    engine.add(3, prompt, replace(MEAN, pooling="sum"))
    found = []
    while engine.has_work:
        found += [event for _, event in engine.step() if isinstance(event, Embedding)]
        engine.scheduler.check_integrity()
    assert any(preempted)
    assert_close(torch.tensor(found[0].values), expected(reference, prompt, "sum"))


def test_an_answer_does_not_wait_behind_embeddings(llama) -> None:
    """Neither behind those that wait nor behind a long text that is being computed."""
    folder, reference = llama
    engine = tiny.engine(folder, chunk_tokens=12, cache_tokens=600, ctx_size_tokens=160)
    prompts = [tiny.random_ids(100, seed=key) for key in range(4)]
    for key, prompt in enumerate(prompts):
        engine.add(key, prompt, MEAN)
    engine.step()
    engine.add(9, tiny.random_ids(20, seed=9), replace(ANSWERED, max_tokens=1))
    outcomes = [*engine.step(), *engine.step()]
    assert [key for key, event in outcomes if isinstance(event, Tokens)] == [9]
    found: dict[int, torch.Tensor] = {}
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, Embedding):
                found[key] = torch.tensor(event.values)
    for key, prompt in enumerate(prompts):
        assert_close(found[key], expected(reference, prompt, "mean"))


def test_a_text_of_the_whole_context_and_one_longer(llama) -> None:
    folder, reference = llama
    engine = tiny.engine(folder, ctx_size_tokens=40)
    prompt = tiny.random_ids(40)
    assert_close(*embed(engine, [prompt], MEAN), expected(reference, prompt, "mean"))
    with pytest.raises(ContextOverflow, match="the text has 41 tokens, the context 40"):
        engine.add(1, [*prompt, 5], MEAN)


def test_damaged_weights_are_an_error(llama) -> None:
    engine = tiny.engine(llama[0], kernels=False)
    engine.decoder.weights.final_norm.fill_(float("nan"))
    engine.add(1, [3, 4], MEAN)
    ((_, error),) = engine.step()
    assert isinstance(error, BadModelFile) and not engine.has_work


@pytest.mark.parametrize("changes", [{"pooling": "max"}, {"max_tokens": 4}, {"prompt_logprobs": 1}])
def test_contradictory_wishes_are_a_usage_error(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(MEAN, **changes)


@pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_embeddings_of_worker_processes(
    llama: tuple[Path, torch.nn.Module], tp: int, pp: int
) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(40, seed=4)
    config = EngineConfig(
        device="cpu", dtype="float32", num_threads=1, tp=tp, pp=pp, chunk_tokens=16
    )
    with EngineClient(config, folder) as client:
        for pooling in POOLINGS:
            events = list(client.generate(prompt, replace(MEAN, pooling=pooling)))
            (found,) = (event for event in events if isinstance(event, Embedding))
            assert_close(torch.tensor(found.values), expected(reference, prompt, pooling))
            assert isinstance(events[-1], Finished)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen3-moe"])
@pytest.mark.parametrize("kernels", [True, False])
def test_embeddings_on_a_gpu(name: str, kernels: bool, tmp_path: Path) -> None:
    """In chunks beside an answer in progress, by the kernels and by torch's operators."""
    reference = tiny.make_with_reference(name, tmp_path)
    engine = tiny.engine(tmp_path, device="cuda", chunk_tokens=16, kernels=kernels)
    prompts = [tiny.random_ids(n, seed=n) for n in (50, 1, 16, 23)]
    alone, _ = tiny.run(engine, {9: prompts[3]}, ANSWERED)
    for pooling in POOLINGS:
        engine.add(9, prompts[3], ANSWERED)
        for key, prompt in enumerate(prompts):
            engine.add(key, prompt, replace(MEAN, pooling=pooling))
        ids: list[int] = []
        while engine.has_work:
            for key, event in engine.step():
                if isinstance(event, Tokens):
                    assert key == 9
                    ids += event.ids
                if isinstance(event, Embedding):
                    # fp32 kernels and cuBLAS add in another order than torch on the CPU.
                    found = torch.tensor(event.values)
                    truth = expected(reference, prompts[key], pooling)
                    assert (found - truth).abs().max() <= 1e-4 * truth.abs().max()
        assert ids == alone[9]
