"""What a captured decode step samples with, and what the host must."""

import math
from types import SimpleNamespace

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch, device_bias
from swiftchat.engine.schedule.sequence import Row, TokenSequence


def test_single_bad_words_and_biases_share_a_row() -> None:
    params = SamplingParams(logit_bias=((1, 2.0), (2, -1.0)), bad_words=((2,), (3,), (4, 5)))
    assert device_bias(params) == {1: 2.0, 2: -math.inf, 3: -math.inf}
    assert device_bias(SamplingParams()) == {}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"repeat_penalty": 1.2, "min_tokens": 3, "logit_bias": ((1, 2.0),), "top_k": 5}, ()),
        ({"bad_words": ((1,), (2,)), "repeat_penalty": 1.2, "repeat_last_n": 0}, ()),
        ({"bad_words": ((1,), (2, 3))}, ("bad_words",)),
        ({"repeat_last_n": 64}, ()),
        ({"repeat_penalty": 1.2, "repeat_last_n": 64}, ("repeat_last_n",)),
        ({"typical_p": 0.5, "top_p_decay": 0.9}, ("typical_p", "top_p_decay")),
        ({"typical_p": 0.5, "top_p_decay": 0.9, "temperature": 0}, ()),
        ({"dry_multiplier": 0.8, "no_repeat_ngram": 2}, ("dry_multiplier", "no_repeat_ngram")),
        ({"logprobs": 0}, ("logprobs",)),
    ],
)
def test_host_controls_are_those_that_the_kernels_lack(changes: dict, names: tuple) -> None:
    assert SamplingParams(**changes).host_controls == names


def test_proposed_tokens_have_rows_after_their_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, which needs no pinned memory."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    gpu = SimpleNamespace(device=torch.device("cpu"))
    batch = DecodeBatch(gpu, 8, 8, block_size=4, vocab_size=50)  # type: ignore[arg-type]
    speculating = TokenSequence(1, [7, 8, 9], SamplingParams(temperature=0.5, top_k=3))
    speculating.num_computed, speculating.block_table = 2, [5, 6]
    penalized = TokenSequence(
        2, [3, 3, 4], SamplingParams(repeat_penalty=1.5, logit_bias=((2, -1.0),))
    )
    penalized.num_computed, penalized.block_table = 2, [1]
    batch.load_rows([Row(speculating, 1, (11, 12)), Row(penalized, 1)], [21, 2**64 - 1])
    assert batch.ids[:4].tolist() == [9, 11, 12, 4]
    assert batch.positions[:4].tolist() == [2, 3, 4, 2]
    assert batch.context_lens.tolist() == [3, 4, 5, 3, 0, 0, 0, 0]
    assert batch.slot_mapping.tolist() == [22, 23, 24, 6, -1, -1, -1, -1]
    assert batch.block_tables[:4, :2].tolist() == [[5, 6], [5, 6], [5, 6], [1, 0]]
    assert batch.top_k[:4].tolist() == [3, 3, 3, 0]
    assert batch.temperature[:3].tolist() == [0.5] * 3
    assert batch.repeat_penalty[:4].tolist() == [1.0, 1.0, 1.0, 1.5]
    assert batch.seeds[:4].tolist() == [21, 21, 21, -1]
    assert batch.has_bias[:4].tolist() == [0, 0, 0, 1] and batch.bias[3, 2] == -1
    seen = torch.zeros(50, dtype=torch.int32)
    seen[[3, 4]] = 1 << 30
    assert torch.equal(batch.counts[3], seen)
