"""Several GPUs against the CPU, on tiny random models in fp32: the same ids."""

import os
from pathlib import Path
from typing import Any

import pytest
import tiny

from swiftchat.engine.lockstep import LockstepEngine
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.errors import SwiftchatError

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
# Fused and not, heads normed, branches normed, windows, LayerNorm, ALiBi, parallel branches.
NAMES = ("llama", "llama-biases", "qwen3", "gemma2", "gemma3", "olmo2", "gpt2", "bloom", "gpt-neox")
WIDE = {"num_attention_heads": 8, "n_head": 8, "hidden_size": 64, "n_embd": 64, "vocab_size": 128}


def lost(error: SwiftchatError) -> None:
    print(error)
    os._exit(1)  # this rank waits for the other for ever


def lockstep(folder: Path, tp: int, cubins: Path, **config: Any) -> LockstepEngine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    return LockstepEngine(folder, EngineConfig(tp=tp, **settings), lambda *_: None, cubins, lost)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.parametrize("tp", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_one_cpus(name: str, tp: int, tmp_path: Path, cubins: Path) -> None:
    """Greedy and drawn, alone and together, by prefill in chunks and by decode steps."""
    tiny.make(name, tmp_path, **WIDE)
    engine = lockstep(tmp_path, tp, cubins, chunk_tokens=16)
    try:
        for params in (
            SamplingParams(temperature=0, max_tokens=64),
            SamplingParams(temperature=0.9, top_p=0.9, max_tokens=40, seed=7),
        ):
            prompts = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(4)}
            on_cpu, _ = tiny.run(tiny.engine(tmp_path), prompts, params)
            assert tiny.run(engine, prompts, params)[0] == on_cpu
            alone = [tiny.run(engine, {i: p}, params)[0][i] for i, p in prompts.items()]
            assert alone == list(on_cpu.values())
    finally:
        engine.close()
