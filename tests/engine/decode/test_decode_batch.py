"""What a captured decode step samples with, and what the host must."""

import math

import pytest

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.decode.decode_batch import device_bias


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
