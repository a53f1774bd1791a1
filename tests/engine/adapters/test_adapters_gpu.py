"""Adapters and soft prompts on a GPU against the same on the CPU, in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from tests.support import adapters, tiny

pytestmark = pytest.mark.gpu
PROMPTS = [tiny.random_ids(length, seed=length) for length in (13, 1, 70)]


def made(folder: Path, family: str, settings: list[dict[str, Any]]) -> list[Tuning]:
    reference, found = tiny.make_with_reference(family, folder), []
    for seed, changes in enumerate(settings):
        changes = {"target_modules": adapters.targets(family), **changes}
        path, model = adapters.make_adapter(folder / str(seed), reference, seed, **changes)
        model.unload()
        found.append(adapters.tuning_of(path))
    return found


@pytest.mark.parametrize("in_linear", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gpt2"])
def test_captured_steps_equal_the_cpu(
    family: str, in_linear: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without an adapter, and with two of different ranks, the larger one loaded last.

    The changes are computed in the matmuls, or by kernels of their own, as for large ranks.
    """
    monkeypatch.setattr(FusedDeltas, "in_linear", in_linear)
    low, high = made(tmp_path, family, [{"r": 3}, {"r": 17}])
    requests = [(ids, tuning) for ids in PROMPTS for tuning in (None, low, high)]
    expected = adapters.greedy(tiny.engine(tmp_path), requests)
    engine = tiny.engine(tmp_path, device="cuda")
    assert adapters.greedy(engine, requests[:2]) == expected[:2]
    replayed = engine.stats()["graph_steps"]
    assert adapters.greedy(engine, requests) == expected
    if family != "gpt2":  # LayerNorm is not in the fused kernels
        assert engine.stats()["graph_steps"] > replayed
    assert adapters.greedy(engine, [(ids, None) for ids in PROMPTS]) == expected[::3]


@pytest.mark.parametrize("max_num_seqs", [1, 2])
@pytest.mark.parametrize("in_linear", [True, False])
def test_running_answers_keep_their_adapters(
    in_linear: bool, max_num_seqs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of a larger rank, for more kinds of matrices, is loaded during an answer.

    The request that names it waits for a row, or starts at once.
    """
    monkeypatch.setattr(FusedDeltas, "in_linear", in_linear)
    low, high = made(tmp_path, "llama", [{"r": 3, "target_modules": ["q_proj"]}, {"r": 17}])
    requests = [(PROMPTS[0], low), (PROMPTS[2], high)]
    cpu = tiny.engine(tmp_path)
    expected = [adapters.greedy(cpu, [request])[0] for request in requests]
    engine = tiny.engine(tmp_path, device="cuda", max_num_seqs=max_num_seqs)
    params = tiny.SamplingParams(temperature=0, max_tokens=8)
    found: list[list[int]] = [[], []]
    engine.add(0, list(PROMPTS[0]), params, tuning=low)
    while engine.has_work:
        for i, event in engine.step():
            found[i] += event.ids if isinstance(event, Tokens) else []
            if len(found[0]) == 3 and isinstance(event, Tokens) and i == 0:
                engine.add(1, list(PROMPTS[2]), params, tuning=high)
    assert found == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
    ],
)
def test_adapters_without_kernels_equal_the_cpu(settings: dict[str, Any], tmp_path: Path) -> None:
    tunings = made(tmp_path, "llama", [settings])
    requests = [(ids, tuning) for ids in PROMPTS for tuning in (None, *tunings)]
    expected = adapters.greedy(tiny.engine(tmp_path), requests)
    assert adapters.greedy(tiny.engine(tmp_path, device="cuda"), requests) == expected


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_soft_prompts_equal_the_cpu(kind: str, tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    folder, _ = adapters.make_soft_prompt(tmp_path / "prompt", reference, kind, 6)
    tuning = Tuning(soft_prompt=str(folder))
    requests = [(ids, each) for ids in PROMPTS for each in (None, tuning)]
    expected = adapters.greedy(tiny.engine(tmp_path), requests)
    engine = tiny.engine(tmp_path, device="cuda")
    for _ in range(2):
        assert adapters.greedy(engine, requests) == expected


def test_quantized_bases(tmp_path: Path) -> None:
    """Logprobs near those of the CPU, on matrices in int8 and activations in bf16."""
    (tuning,) = made(tmp_path / "base", "llama", [{}])
    from swiftchat.weights.convert.convert import convert
    from swiftchat.weights.quantization.quantize import QuantizationSpec

    convert(tmp_path / "base", tmp_path / "int8", quantization=QuantizationSpec("int8", 32))
    logits = [
        adapters.logits(tiny.engine(tmp_path / "int8", **options), [(PROMPTS[0], tuning)])[0]
        for options in ({"dtype": "float32"}, {"dtype": "bfloat16", "device": "cuda"})
    ]
    error = (logits[0] - logits[1].float().cpu()).norm() / logits[0].norm()
    assert error < 0.05
    assert torch.isfinite(logits[1]).all()
