"""Scores: windows cover a text once, and logprobs equal transformers'."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Logprob
from swiftchat.engine.api.score import Score, score, windows
from swiftchat.errors import UsageError
from tests.support import tiny

IDS = tiny.random_ids(100)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, tiny.make_with_reference("llama", folder)


@pytest.fixture(scope="module")
def client(llama: tuple[Path, torch.nn.Module]):
    with EngineClient(EngineConfig(device="cpu", dtype="float32", num_threads=1), llama[0]) as one:
        yield one


@given(st.data())
def test_windows_score_each_id_but_the_first_once(data: st.DataObject) -> None:
    num_ids, context = data.draw(st.integers(2, 300)), data.draw(st.integers(2, 120))
    stride = data.draw(st.integers(1, context - 1))
    found = list(windows(num_ids, context, stride))
    scored = [i for one in found for i in range(one.first_scored, one.end)]
    assert scored == list(range(1, num_ids))
    assert all(one.end - one.start <= context for one in found)
    for one in found[1:]:
        assert one.end - one.start == context and one.first_scored - one.start >= context - stride


@pytest.mark.parametrize(("context", "stride"), [(None, None), (100, 50), (40, None), (30, 29)])
def test_logprobs_equal_transformers(
    llama: tuple[Path, torch.nn.Module],
    client: EngineClient,
    context: int | None,
    stride: int | None,
) -> None:
    reference, expected = llama[1], []
    size = context or len(IDS)
    for one in windows(len(IDS), size, stride or size // 2):
        with torch.inference_mode():
            logits = reference(torch.tensor([IDS[one.start : one.end]])).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        for i in range(one.first_scored, one.end):
            expected.append(float(logprobs[i - 1 - one.start, IDS[i]]))
    progress: list[int] = []
    found = score(client, IDS, context=context, stride=stride, on_progress=progress.append)
    assert [one.logprob for one in found.logprobs] == pytest.approx(expected, abs=2e-3)
    assert found.nats == pytest.approx(-math.fsum(expected), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(found.nats / 99))
    assert progress == sorted(progress) and progress[-1] == 99


@pytest.mark.parametrize(
    ("ids", "context", "stride", "message"),
    [
        ([1], None, None, "the text has 1 tokens"),
        (IDS, 1, None, "the context must be between 2 and"),
        (IDS, 10**6, None, "the context must be between 2 and"),
        (IDS, 20, 20, "the stride must be between 1 and 19 tokens"),
        (IDS, 20, 0, "the stride must be between 1 and 19 tokens"),
    ],
)
def test_impossible_windows_are_a_usage_error(
    client: EngineClient, ids: list[int], context: int | None, stride: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        score(client, ids, context=context, stride=stride)


def test_the_perplexity_of_an_impossible_text_is_infinite() -> None:
    assert Score([Logprob(-1e4, [])]).perplexity == math.inf
