"""Logprobs of generated tokens, against transformers on the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Logprob, Tokens
from tests.support import tiny

# None of these may change the logprobs, which are computed from the unmodified logits.
SAMPLED = SamplingParams(
    temperature=1.7,
    top_k=20,
    repeat_penalty=1.3,
    presence_penalty=0.5,
    seed=5,
    max_tokens=24,
    logprobs=4,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, tiny.make_with_reference("llama", folder)


def assert_equal_transformers(
    reference: torch.nn.Module, prompt: list[int], ids: list[int], found: list[Logprob]
) -> None:
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, -1)
    for token, row, one in zip(ids, expected, found, strict=True):
        # The logits agree to 1e-4 of the largest, about 20.
        assert one.logprob == pytest.approx(float(row[token]), abs=2e-3)
        values, top = row.topk(len(one.top))
        assert [i for i, _ in one.top] == top.tolist()
        assert [v for _, v in one.top] == pytest.approx(values.tolist(), abs=2e-3)


def test_logprobs_equal_transformers(llama) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(30)
    ids, found = tiny.logprobs(tiny.engine(folder, chunk_tokens=16), prompt, SAMPLED)
    assert len(found) == 24 and {len(one.top) for one in found} == {4}
    assert_equal_transformers(reference, prompt, ids, found)
    plain, none = tiny.logprobs(tiny.engine(folder), prompt, replace(SAMPLED, logprobs=None))
    assert plain == ids and none == []


def test_logprobs_of_a_worker_process_equal_transformers(
    llama: tuple[Path, torch.nn.Module],
) -> None:
    folder, reference = llama
    prompt = tiny.random_ids(9, seed=2)
    ids: list[int] = []
    found: list[Logprob] = []
    with EngineClient(EngineConfig(device="cpu", dtype="float32", num_threads=1), folder) as client:
        for event in client.generate(prompt, SAMPLED):
            if isinstance(event, Tokens):
                ids += event.ids
                found += event.logprobs
    assert len(ids) == 24
    assert_equal_transformers(reference, prompt, ids, found)
