"""Statistics say what is known about an answer: speed, speculation, sampling on the host."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from swiftchat.chat.render.stats import (
    answer_rows,
    host_sampling,
    speculation,
    speculation_json,
    stats_line,
)
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Finished, Speculated

INFO = EngineInfo("H", "float32", 1000, 4000, 512, 8000, 2048, 1, 0.125)


def test_statistics_name_the_controls_that_stop_captured_steps() -> None:
    gpu = replace(INFO, replays_steps=True)
    answer: Any = SimpleNamespace(
        params=SamplingParams(dry_multiplier=0.8, typical_p=0.9), is_constrained=False
    )
    assert host_sampling(answer, INFO) == ""
    assert host_sampling(answer, gpu) == (
        "slower: the host samples because of dry_multiplier, typical_p"
    )
    answer = SimpleNamespace(
        params=SamplingParams(repeat_penalty=1.2, top_k=5, min_p=0.1), is_constrained=True
    )
    assert host_sampling(answer, gpu) == ""
    assert host_sampling(answer, replace(gpu, pp=2)).endswith("because of a grammar")


@pytest.mark.parametrize(("ttft_s", "from_start"), [(0.25, "1.75"), (None, "1.50")])
def test_the_first_token_counts_from_the_prompt_or_the_command(
    ttft_s: float | None, from_start: str
) -> None:
    answer: Any = SimpleNamespace(
        params=SamplingParams(speculate="off"),
        result=None,
        ttft_s=ttft_s,
        tokens_per_s=8.0,
        num_prompt_tokens=10,
        num_tokens=4,
        num_reasoning_tokens=0,
        finish_reason="length",
        is_constrained=False,
    )
    line = stats_line(answer, INFO, load_s=0.5)
    assert line.startswith(f"first token {ttft_s or 0:.2f} s · load 0.50 s · ")
    line = stats_line(answer, INFO, load_s=0.5, age_at_start_s=1.5)
    assert line.startswith(f"first token {from_start} s after the start of the command · ")


def test_statistics_say_what_speculation_brought() -> None:
    found = Speculated("ngram", num_steps=10, num_proposed=40, num_accepted=30, gain=1.875)
    result = Finished("stop", 5, 0, 60, 0.1, 0.5, 7, found)
    answer: Any = SimpleNamespace(params=SamplingParams(), result=result, is_constrained=False)
    assert speculation(answer, INFO) == (
        "ngram · 75 % of 40 proposed tokens accepted, 3.0 per step · "
        "1.88 × the speed of plain decoding"
    )
    assert speculation_json(answer) == {
        "proposer": "ngram",
        "steps": 10,
        "proposed_tokens": 40,
        "accepted_tokens": 30,
        "acceptance_rate": 0.75,
        "mean_accepted_tokens": 3.0,
        "gain": 1.875,
    }


def test_statistics_say_why_speculation_was_off() -> None:
    result = Finished("stop", 5, 0, 60, 0.1, 0.5, 7)
    answer: Any = SimpleNamespace(params=SamplingParams(), result=result, is_constrained=True)
    assert speculation(answer, INFO, before=" · ") == " · off: the answer has a grammar"
    answer.is_constrained = False
    assert speculation(answer, INFO) == ""
    assert speculation_json(answer) is None
    answer.params = SamplingParams(repeat_penalty=1.2, min_tokens=3)
    assert speculation(answer, INFO) == ""
    gpu = replace(INFO, replays_steps=True)
    assert speculation(answer, gpu) == "off because of repeat_penalty, min_tokens"


def test_an_interrupted_answer_claims_nothing_about_the_cache() -> None:
    answer: Any = SimpleNamespace(
        params=SamplingParams(),
        result=None,
        is_constrained=False,
        beams=[],
        num_prompt_tokens=100,
        num_tokens=5,
        num_reasoning_tokens=0,
        ttft_s=0.1,
        tokens_per_s=20.0,
        finish_reason="interrupt",
    )
    rows = answer_rows(answer, INFO)
    assert "not known" in rows["cache hits"] and "– " not in rows["answer"]
    assert "1000" not in rows["prompt"] and "prompt 100 tokens, –" in stats_line(answer, INFO, 1.0)
    answer.result = Finished("stop", 100, 60, 5, 0.1, 0.5, 7)
    assert answer_rows(answer, INFO)["cache hits"].startswith("60 of 100 prompt tokens (60 %)")
    assert "400.0 tok/s" in answer_rows(answer, INFO)["prompt"]
