"""Logprobs of the prompt's tokens, against transformers on the same weights."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Logprob, PromptLogprobs, Tokens
from swiftchat.engine.generation.engine import Engine
from tests.support import tiny

SCORED = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=3)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, tiny.make_with_reference("llama", folder)


def score(
    engine: Engine, prompts: list[list[int]], params: SamplingParams = SCORED
) -> tuple[list[list[Logprob]], list[list[int]]]:
    """Return the prompt logprobs and the generated ids of each prompt, computed together."""
    for key, prompt in enumerate(prompts):
        engine.add(key, prompt, params)
    found: list[list[Logprob]] = [[] for _ in prompts]
    ids: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, PromptLogprobs):
                assert not ids[key]
                found[key] += event.logprobs
            elif isinstance(event, Tokens):
                ids[key] += event.ids
    return found, ids


def assert_equal_transformers(
    reference: torch.nn.Module, prompt: list[int], found: list[Logprob]
) -> None:
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1)
    for token, row, one in zip(prompt[1:], expected, found, strict=True):
        # The logits agree to 1e-4 of the largest, about 20.
        assert one.logprob == pytest.approx(float(row[token]), abs=2e-3)
        values, top = row.topk(3)
        assert [i for i, _ in one.top] == top.tolist()
        assert [v for _, v in one.top] == pytest.approx(values.tolist(), abs=2e-3)


def test_prompt_logprobs_of_several_chunks_equal_transformers(llama) -> None:
    folder, reference = llama
    prompts = [tiny.random_ids(n, seed=n) for n in (150, 2, 1, 40)]
    found, ids = score(tiny.engine(folder, chunk_tokens=16), prompts)
    assert not any(ids)
    for prompt, logprobs in zip(prompts, found, strict=True):
        assert_equal_transformers(reference, prompt, logprobs)


def test_a_cached_prompt_is_computed_again_for_its_logprobs(llama) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(60)
    engine = tiny.engine(folder)
    answer = replace(SCORED, max_tokens=5)
    _, (ids,) = score(engine, [prompt], replace(answer, prompt_logprobs=None))
    (found,), (again,) = score(engine, [prompt], answer)
    assert again == ids and len(ids) == 5
    assert_equal_transformers(reference, prompt, found)


def test_prompt_logprobs_are_reported_once_when_sequences_are_preempted(llama) -> None:
    folder, reference = llama
    prompts = [tiny.random_ids(70, seed=n) for n in range(4)]
    engine = tiny.engine(folder, chunk_tokens=24, cache_tokens=200, ctx_size_tokens=160)
    found, ids = score(engine, prompts, replace(SCORED, max_tokens=40))
    assert {len(one) for one in ids} == {40}
    for prompt, logprobs in zip(prompts, found, strict=True):
        assert_equal_transformers(reference, prompt, logprobs)


def test_prompt_logprobs_of_a_worker_process(llama: tuple[Path, torch.nn.Module]) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(20, seed=2)
    found: list[Logprob] = []
    with EngineClient(EngineConfig(device="cpu", dtype="float32", num_threads=1), folder) as client:
        for event in client.generate(prompt, SCORED):
            if isinstance(event, PromptLogprobs):
                found += event.logprobs
            last = event
    assert isinstance(last, Finished) and last.reason == "length"
    assert last.completion_tokens == 0
    assert_equal_transformers(reference, prompt, found)


@pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
def test_prompt_logprobs_of_several_ranks(
    llama: tuple[Path, torch.nn.Module], tp: int, pp: int
) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(40, seed=4)
    config = EngineConfig(
        device="cpu", dtype="float32", num_threads=1, tp=tp, pp=pp, chunk_tokens=16
    )
    with EngineClient(config, folder) as client:
        events = list(client.generate(prompt, SCORED))
    found = [one for event in events if isinstance(event, PromptLogprobs) for one in event.logprobs]
    assert_equal_transformers(reference, prompt, found)
