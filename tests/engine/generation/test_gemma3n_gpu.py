"""Gemma 3n on a GPU: steps and prompts captured with streams that torch mixes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.decode.async_decode import AsyncDecode
from tests.support import gemma3n, tiny
from tests.support.gpu_engines import decode_logits, gpu_engine, step_logits

pytestmark = pytest.mark.gpu
PLAIN = SamplingParams(temperature=0, max_tokens=24, speculate="off")


@pytest.fixture(scope="module", params=["tiny", "wide"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    gemma3n.make(path, **(gemma3n.HEADS if request.param == "wide" else {}))
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def prompts(count: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(1 + 13 * i % 60, seed=i) for i in range(count)}


@pytest.mark.parametrize("path", ["graphs", "no graphs", "torch"])
def test_fp32_ids_equal_the_cpu(folder: Path, cubins: Path, path: str) -> None:
    """Alone and batched: chunks of prompts, decode steps, and both mixed."""
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts(5), PLAIN)
    settings: dict[str, Any] = {"kernels": False} if path == "torch" else {}
    engine = gpu_engine(folder, cubins, dtype="float32", chunk_tokens=16, **settings)
    assert (engine.gpu is None) == (path == "torch")
    if path == "no graphs":
        engine.graph_decode = None
    together, _ = tiny.run(engine, prompts(5), PLAIN)
    assert together == on_cpu
    alone = [tiny.run(engine, {i: ids}, PLAIN)[0][i] for i, ids in prompts(5).items()]
    assert alone == list(on_cpu.values())
    assert (engine.stats().get("graph_steps", 0) > 0) == (path == "graphs")


def test_captured_prompts_give_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins, dtype="float32")
    before, _ = tiny.run(engine, prompts(5), PLAIN)
    while engine.can_prepare:
        engine.prepare()
    assert engine.prefill_graphs is not None and engine.prefill_graphs.is_captured(20)
    alone = [tiny.run(engine, {i: ids}, PLAIN)[0][i] for i, ids in prompts(5).items()]
    assert alone == list(before.values())


def test_verified_tokens_give_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins, dtype="float32")
    ids = tiny.random_ids(12, seed=3) * 4
    plain, _ = tiny.run(engine, {1: ids}, PLAIN)
    assert tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=24))[0] == plain


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chunk_tokens", [None, 1])
def test_half_precision_is_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, chunk_tokens: int | None
) -> None:
    """A prompt in one chunk, and token by token as decode steps."""
    ids = tiny.random_ids(90, seed=5)
    exact = decode_logits(gpu_engine(folder, cubins, dtype="float32", kernels=False), ids)
    engine = gpu_engine(folder, cubins, dtype=dtype, chunk_tokens=chunk_tokens)
    assert engine.gpu is not None
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= 0.06 * torch.linalg.norm(exact)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_captured_steps_equal_torch(folder: Path, cubins: Path, num_rows: int) -> None:
    """The logits of a captured step in fp32, for one row and for several."""
    engine = gpu_engine(folder, cubins, dtype="float32")
    decode = engine.graph_decode
    assert isinstance(decode, AsyncDecode) and not decode.runner.uses_fused_kernels(num_rows)
    rows, found = step_logits(engine, num_rows)
    exact_engine = gpu_engine(folder, cubins, dtype="float32", kernels=False)
    exact = torch.stack([decode_logits(exact_engine, ids) for ids in rows])
    errors = torch.linalg.norm(found - exact, dim=1) / torch.linalg.norm(exact, dim=1)
    assert errors.max() <= 1e-3
