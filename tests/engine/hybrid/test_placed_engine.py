"""Engines with experts in main memory, on emulated GPU kernels and the CPU's own, in fp32."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.memory_estimate import plain_weight_bytes
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.cpu.native_weights import NativeWeight
from swiftchat.engine.generation import build, setup
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.hybrid import placed_experts
from swiftchat.engine.hybrid.placed_experts import PlacedExperts
from swiftchat.errors import DeviceError, OutOfMemory
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support import llama4, tiny
from tests.support.emulated.engine import emulated_engine, use_emulated_gpu
from tests.support.expert_models import EXPERT_MODELS
from tests.support.native.libraries import compile_kernels

# The emulated kernels have no biases of experts.
MODELS = ("qwen3-moe", "qwen2-moe", "glm4-moe", "mixtral", "gemma4")
GREEDY = SamplingParams(temperature=0, max_tokens=10)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels()
    use_emulated_gpu(monkeypatch)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    EXPERT_MODELS[request.param](path)
    return path


def prompts(num: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(7 + 9 * i, seed=i) for i in range(num)}


def ids(engine: Engine, num: int, params: SamplingParams = GREEDY) -> dict[int, list[int]]:
    found, _ = tiny.run(engine, prompts(num), params)
    return found


def on_host(engine: Engine) -> list[int]:
    """Return the layers whose experts the CPU's kernels compute."""
    layers = enumerate(engine.decoder.weights.layers)
    return [
        i
        for i, layer in layers
        if layer.experts is not None
        and all(isinstance(each.down, NativeWeight) for each in layer.experts.each)
    ]


@torch.inference_mode()
def test_ids_are_those_of_one_device(folder: Path) -> None:
    whole = emulated_engine(folder, cpu_experts=0)
    expected, num = (
        ids(whole, 3),
        sum(layer.moe is not None for layer in whole.decoder.config.layers),
    )
    assert on_host(whole) == [] and whole.info.host_bytes == 0
    for num_host in (1, num):
        engine = emulated_engine(folder, cpu_experts=num_host)
        assert len(on_host(engine)) == num_host
        assert isinstance(engine.decoder.ops.experts, PlacedExperts)
        assert engine.info.note.startswith(f"{num - num_host} of {num} layers' experts on the GPU")
        assert f"experts of {num_host} layers by " in engine.info.device
        assert engine.info.host_bytes > 0
        assert ids(engine, 3) == expected
        assert engine.stats()["graph_steps"] > 0


def limit(monkeypatch: pytest.MonkeyPatch, gpu_bytes: int, host_bytes: int = 1 << 40) -> None:
    """Let engines have so much free memory."""
    use_emulated_gpu(monkeypatch)
    set_up = build.set_up

    def with_memory(*args: Any) -> Any:
        return replace(set_up(*args), available_bytes=gpu_bytes)

    monkeypatch.setattr(build, "set_up", with_memory)
    monkeypatch.setattr(setup, "available_bytes", lambda *_: host_bytes)


@torch.inference_mode()
def test_only_what_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less and less memory, more layers' experts are in main memory; then it says how much."""
    found = list[int]()
    for mib in (2000, 20, 15, 10, 8, 6):
        limit(monkeypatch, mib << 20)
        try:
            engine = emulated_engine(folder, chunk_tokens=16, ctx_size_tokens=64)
        except OutOfMemory as error:
            assert "not enough memory on the GPU" in error.message
            break
        found.append(len(on_host(engine)))
    assert found[0] == 0 and found == sorted(found)


def refused(folder: Path, **config: Any) -> str:
    with pytest.raises(DeviceError) as caught:
        emulated_engine(folder, **config)
    assert caught.value.exit_code == 4
    return caught.value.message


@pytest.mark.fault(16)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moe, dense = tmp_path / "moe", tmp_path / "dense"
    tiny.make("qwen3-moe", moe)
    tiny.make("llama", dense)
    assert "has 3 layers with experts" in refused(moe, cpu_experts=4)
    assert "has 0 layers with experts" in refused(dense, cpu_experts=1)
    on_input = tmp_path / "llama4"
    llama4.make(next(iter(llama4.VARIANTS)), on_input)
    assert "weighs the input of experts" in refused(on_input, cpu_experts=1)
    limit(monkeypatch, 1 << 40, host_bytes=1000)
    assert "not enough main memory" in refused(moe, cpu_experts=1)
    limit(monkeypatch, 1 << 40)
    assert emulated_engine(on_input).info.host_bytes == 0
    monkeypatch.setenv("SWIFTCHAT_CPU_KERNELS", "off")
    assert "switched off by SWIFTCHAT_CPU_KERNELS=off" in refused(moe, cpu_experts=1)
    assert emulated_engine(moe).info.host_bytes == 0


@torch.inference_mode()
def test_what_cannot_be_placed_has_a_shorter_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CPU kernels; an error says what is missing even with a placement."""
    tiny.make("qwen3-moe", tmp_path, max_position_embeddings=8192)
    whole = emulated_engine(tmp_path, chunk_tokens=16)
    per_token = whole.info.cache_bytes // whole.info.cache_tokens
    workspace = whole.back_end.workspace_bytes(whole.decoder.config, torch.float32, 16, 16)
    needed = plain_weight_bytes(Shard(whole.decoder.config), 4) + workspace
    for num_tokens, num_host in ((5000, 0), (3900, 2)):
        limit(monkeypatch, (needed + num_tokens * per_token) * 100 // 85)
        placed = emulated_engine(tmp_path, chunk_tokens=16)
        assert len(on_host(placed)) == num_host
    monkeypatch.setenv("SWIFTCHAT_CPU_KERNELS", "off")
    engine = emulated_engine(tmp_path, chunk_tokens=16)
    assert on_host(engine) == [] and 256 <= engine.info.ctx_size_tokens < 3900
    limit(monkeypatch, needed)
    with pytest.raises(OutOfMemory, match="0 of 3 layers' experts on the GPU"):
        emulated_engine(tmp_path, chunk_tokens=16)


@torch.inference_mode()
def test_long_prompts_in_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make("qwen3-moe", tmp_path)
    prompt = {1: tiny.random_ids(50, seed=4)}
    expected, _ = tiny.run(emulated_engine(tmp_path), prompt, GREEDY)
    monkeypatch.setattr(placed_experts, "_MAX_ROWS", 16)
    found, _ = tiny.run(emulated_engine(tmp_path, cpu_experts=2), prompt, GREEDY)
    assert found == expected


def test_threads_leave_one_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make("qwen3-moe", tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert emulated_engine(tmp_path, cpu_experts=1).info.num_threads == 3
    assert emulated_engine(tmp_path, cpu_experts=1, num_threads=4).info.num_threads == 4


def test_the_thread_ends_with_the_engine(tmp_path: Path) -> None:
    tiny.make("qwen3-moe", tmp_path)
    engine = emulated_engine(tmp_path, cpu_experts=1)
    experts = engine.decoder.ops.experts
    assert isinstance(experts, PlacedExperts)
    close = experts._caller.close
    assert close.alive
    del engine, experts
    gc.collect()
    assert not close.alive
