"""Distributed argmax: equal to sampling greedily from all columns of the logits."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.sampling.distributed import distributed_argmax, is_plain_greedy
from swiftchat.engine.sampling.sampler import sample
from swiftchat.engine.schedule.sequence import TokenSequence
from tests.support import tiny
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def sampled(row: torch.Tensor) -> int:
    return sample(row, [0], 1, GREEDY, 0)


# Few distinct values, for ties within the columns of a rank and between ranks.
FINITE = st.sampled_from([0.0, -0.0, 1.5, 1.5000001, -2.0, 3e38, 1e-45])
NON_FINITE = st.sampled_from([float("nan"), float("inf"), -float("inf")])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_distributed_argmax_equals_greedy_sampling(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 4))
    width = data.draw(st.integers(size * size, 40))  # every rank has columns
    rows = data.draw(st.integers(1, 3))
    number = FINITE
    if data.draw(st.booleans()):
        number = st.one_of(FINITE, FINITE, FINITE, NON_FINITE)
    cells = st.lists(number, min_size=width, max_size=width)
    whole = torch.tensor([data.draw(cells) for _ in range(rows)])
    each = -(-width // size)

    def run(rank: int, ranks: ThreadCommunicator) -> list[int]:
        return distributed_argmax(whole[:, rank * each : (rank + 1) * each], width, ranks)

    assert run_ranks(size, run) == [[sampled(row) for row in whole]] * size


@pytest.mark.parametrize(
    ("params", "width"),
    [
        (GREEDY, 2),
        (SamplingParams(temperature=0, repeat_penalty=1.1, max_tokens=6), 64),
        (SamplingParams(temperature=0, logprobs=0, max_tokens=6), 64),
        (SamplingParams(temperature=1, seed=3, max_tokens=6), 64),
    ],
)
def test_logits_are_gathered_only_if_needed(
    params: SamplingParams, width: int, tmp_path: Path
) -> None:
    """Each of two ranks sends `width` columns."""
    tiny.make("llama", tmp_path, vocab_size=128, num_attention_heads=4, hidden_size=64)
    assert is_plain_greedy(TokenSequence(1, [1], params)) == (width == 2)

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[list[int], set[int]]:
        gather, widths = ranks.all_gather, set()

        def seen(x: torch.Tensor, whole: int) -> torch.Tensor:
            widths.add(x.shape[1])
            return gather(x, whole)

        ranks.all_gather = seen  # type: ignore[method-assign]
        config = EngineConfig(device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE, tp=2)
        engine = build_engine(tmp_path, config, ranks=ranks)
        return tiny.run(engine, {1: tiny.random_ids(9)}, params)[0][1], widths

    ids, _ = tiny.run(tiny.engine(tmp_path), {1: tiny.random_ids(9)}, params)
    assert run_ranks(2, run) == [(ids[1], {width})] * 2
