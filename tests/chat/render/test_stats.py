"""The statistics line names controls for which the host samples."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from swiftchat.chat.render.stats import host_sampling
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import EngineInfo

INFO = EngineInfo("H", "float32", 1000, 4000, 512, 8000, 2048, 1, 0.125)


def test_statistics_name_the_controls_that_stop_captured_steps() -> None:
    gpu = replace(INFO, replays_steps=True)
    answer: Any = SimpleNamespace(params=SamplingParams(dry_multiplier=0.8, typical_p=0.9))
    assert host_sampling(answer, INFO) == ""
    assert host_sampling(answer, gpu) == (
        "slower: the host samples because of dry_multiplier, typical_p"
    )
    answer = SimpleNamespace(params=SamplingParams(repeat_penalty=1.2, top_k=5, min_p=0.1))
    assert host_sampling(answer, gpu) == ""
