"""Answers with adapters by captured steps, whose kernels torch emulates on the CPU.

Adapters are loaded while answers run: these go on with theirs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu import capture
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.errors import ContextOverflow, SwiftchatError
from tests.support import adapters, tiny
from tests.support.emulated.engine import emulated_engine, use_emulated_gpu

PARAMS = tiny.SamplingParams(temperature=0, max_tokens=12, speculate="off")
PROMPTS = [tiny.random_ids(length, seed=length) for length in (13, 6)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tuning]]:
    """A model, and adapters of two ranks; the first one changes fewer kinds of matrices."""
    folder = tmp_path_factory.mktemp("model")
    settings: list[dict[str, Any]] = [
        {"r": 3, "target_modules": ["q_proj", "down_proj"]},
        {"r": 17, "target_modules": adapters.targets("llama")},
    ]
    reference, tunings = tiny.make_with_reference("llama", folder), []
    for seed, changes in enumerate(settings):
        path, model = adapters.make_adapter(folder / str(seed), reference, seed, **changes)
        model.unload()
        tunings.append(adapters.tuning_of(path))
    return folder, tunings


@pytest.fixture(scope="module")
def expected(made: tuple[Path, list[Tuning]]) -> list[list[int]]:
    """The answers with each adapter to its prompt, each alone, by torch's operators."""
    folder, tunings = made
    engine = tiny.engine(folder, kernels=False)
    return [
        answers(engine, {0: (prompt, tuning)})[0]
        for prompt, tuning in zip(PROMPTS, tunings, strict=True)
    ]


@pytest.fixture(params=[True, False], ids=["in the matmuls", "by kernels of their own"])
def engine(
    request: pytest.FixtureRequest,
    made: tuple[Path, list[Tuning]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Engine]:
    monkeypatch.setattr(FusedDeltas, "in_linear", request.param)
    use_emulated_gpu(monkeypatch)
    return lambda **config: emulated_engine(made[0], **config)


def answers(
    engine: Engine,
    requests: dict[int, tuple[list[int], Tuning | None]],
    meanwhile: Callable[[], None] | None = None,
) -> dict[int, list[int]]:
    """Generate all answers; call `meanwhile` when the first one has four tokens."""
    found: dict[int, list[int]] = {}
    for i, (ids, tuning) in requests.items():
        engine.add(i, list(ids), PARAMS, tuning=tuning)
    while engine.has_work:
        for i, event in engine.step():
            assert not isinstance(event, SwiftchatError)
            if isinstance(event, Tokens):
                found.setdefault(i, []).extend(event.ids)
        if meanwhile is not None and any(len(ids) >= 4 for ids in found.values()):
            meanwhile()
            meanwhile = None
    assert meanwhile is None
    return found


@torch.inference_mode()
def test_captured_steps_use_adapters(
    engine: Callable[..., Engine], made: tuple[Path, list[Tuning]], expected: list[list[int]]
) -> None:
    running = engine()
    requests = dict(enumerate(zip(PROMPTS, made[1], strict=True)))
    assert answers(running, {**requests, 2: (PROMPTS[0], None)})[0] == expected[0]
    assert list(answers(running, requests).values()) == expected
    assert running.stats()["graph_steps"] > PARAMS.max_tokens


@torch.inference_mode()
def test_adapters_of_the_attention_beside_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, attention = tiny.make_with_reference("mixtral", tmp_path / "model"), "qkvo"
    changes = {"r": 9, "target_modules": [f"{name}_proj" for name in attention]}
    path, _ = adapters.make_adapter(tmp_path / "adapter", reference, **changes)
    tuning = adapters.tuning_of(path)
    requests = {0: (PROMPTS[0], tuning), 1: (PROMPTS[1], None)}
    expected = answers(tiny.engine(tmp_path / "model", kernels=False), requests)
    use_emulated_gpu(monkeypatch)
    running = emulated_engine(tmp_path / "model")
    assert answers(running, requests) == expected
    assert running.stats()["graph_steps"] >= PARAMS.max_tokens - 1


@torch.inference_mode()
@pytest.mark.parametrize("max_num_seqs", [1, 2])
def test_a_running_answer_keeps_its_adapter_when_another_is_loaded(
    engine: Callable[..., Engine],
    made: tuple[Path, list[Tuning]],
    expected: list[list[int]],
    max_num_seqs: int,
) -> None:
    """Of a larger rank, for a request that waits for a row or starts at once."""
    running, (low, high) = engine(max_num_seqs=max_num_seqs), made[1]

    def add() -> None:
        assert running.graphs.decode is not None and running.graphs.decode.is_in_flight
        running.add(1, PROMPTS[1], PARAMS, tuning=high)

    assert answers(running, {0: (PROMPTS[0], low)}, add) == dict(enumerate(expected))
    assert running.stats()["graph_steps"] > PARAMS.max_tokens


@torch.inference_mode()
def test_a_running_answer_keeps_its_adapter_when_a_request_is_refused(
    engine: Callable[..., Engine], made: tuple[Path, list[Tuning]], expected: list[list[int]]
) -> None:
    running, (low, high) = engine(max_num_seqs=1), made[1]

    def refuse() -> None:
        running.tune(high)
        with pytest.raises(ContextOverflow):
            running.add(1, [5] * running.ctx_size_tokens, PARAMS, tuning=high)

    assert answers(running, {0: (PROMPTS[0], low)}, refuse)[0] == expected[0]


@torch.inference_mode()
@pytest.mark.parametrize("failing", ["warm up", "capture"])
def test_without_memory_for_a_new_graph_answers_go_on(
    engine: Callable[..., Engine],
    made: tuple[Path, list[Tuning]],
    expected: list[list[int]],
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The graphs of running answers are discarded for an adapter of a larger rank."""
    running, (low, high) = engine(max_num_seqs=1), made[1]
    attempts: list[str] = []

    def fails(*_: object, **__: object) -> Tensor:
        attempts.append(failing)
        raise torch.OutOfMemoryError

    def add() -> None:
        running.add(1, PROMPTS[1], PARAMS, tuning=high)
        assert running.graphs.decode is not None
        if failing == "capture":
            monkeypatch.setattr(capture, "record", fails)
        else:
            monkeypatch.setattr(running.graphs.decode.graphs, "_launch_sampling", fails)

    assert answers(running, {0: (PROMPTS[0], low)}, add) == dict(enumerate(expected))
    assert attempts
