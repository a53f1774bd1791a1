"""Llama 4 on a GPU: chunks of attention, weighted inputs of experts, with graphs and without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.decode.async_decode import AsyncDecode
from swiftchat.engine.linear.quantized_gpu import GpuQuantizedWeight
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from tests.support import llama4, tiny
from tests.support.gpu_engines import decode_logits, gpu_engine, step_logits

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module", params=llama4.VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    llama4.make(request.param, path, **llama4.HEADS)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def prompts(count: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(1 + 13 * i % 60, seed=i) for i in range(count)}


@pytest.mark.parametrize("path", ["graphs", "no graphs", "torch"])
def test_fp32_ids_equal_the_cpu(folder: Path, cubins: Path, path: str) -> None:
    """Alone and batched: chunks of prompts, decode steps, and both mixed."""
    params = SamplingParams(temperature=0, max_tokens=24, speculate="off")
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts(5), params)
    settings: dict[str, Any] = {"kernels": False} if path == "torch" else {}
    engine = gpu_engine(folder, cubins, dtype="float32", chunk_tokens=16, **settings)
    assert (engine.gpu is None) == (path == "torch")
    if path == "no graphs":
        engine.graph_decode = None
    together, _ = tiny.run(engine, prompts(5), params)
    assert together == on_cpu
    alone = [tiny.run(engine, {i: ids}, params)[0][i] for i, ids in prompts(5).items()]
    assert alone == list(on_cpu.values())
    assert (engine.stats().get("graph_steps", 0) > 0) == (path == "graphs")


def test_more_rows_than_the_fused_kernels_take(folder: Path, cubins: Path) -> None:
    settings = {"max_num_seqs": 21, "cache_tokens": 64 * 21}
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), prompts(21), params)
    engine = gpu_engine(folder, cubins, dtype="float32", **settings)
    assert tiny.run(engine, prompts(21), params)[0] == on_cpu
    assert engine.stats()["graph_steps"] > 0


def test_captured_prompts_give_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins, dtype="float32")
    before, _ = tiny.run(engine, prompts(5), GREEDY)
    while engine.can_prepare:
        engine.prepare()
    assert engine.prefill_graphs is not None and engine.prefill_graphs.is_captured(20)
    alone = [tiny.run(engine, {i: ids}, GREEDY)[0][i] for i, ids in prompts(5).items()]
    assert alone == list(before.values())


def test_verified_tokens_give_the_same_ids(folder: Path, cubins: Path) -> None:
    """Rows of a verification step are in different chunks of attention."""
    engine = gpu_engine(folder, cubins, dtype="float32")
    ids = tiny.random_ids(12, seed=3) * 4
    plain, _ = tiny.run(
        engine, {1: ids}, SamplingParams(temperature=0, max_tokens=40, speculate="off")
    )
    assert tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=40))[0] == plain


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_fused_steps_are_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, num_rows: int
) -> None:
    """The logits of a captured step, for one row and for several."""
    rows, found = step_logits(gpu_engine(folder, cubins, dtype=dtype), num_rows)
    exact_engine = gpu_engine(folder, cubins, dtype="float32", kernels=False)
    exact = torch.stack([decode_logits(exact_engine, ids) for ids in rows])
    bound = 1e-3 if dtype == "float32" else 0.06
    errors = torch.linalg.norm(found - exact, dim=1) / torch.linalg.norm(exact, dim=1)
    assert errors.max() <= bound


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int5"])
def test_quantized_cache_is_near_the_plain_one(folder: Path, cubins: Path, kv_dtype: str) -> None:
    ids = tiny.random_ids(60, seed=7)
    exact = decode_logits(gpu_engine(folder, cubins, dtype="bfloat16"), ids)
    engine = gpu_engine(folder, cubins, dtype="bfloat16", kv_dtype=kv_dtype)
    assert engine.gpu is not None
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= 0.1 * torch.linalg.norm(exact)
    tiny.run(engine, prompts(3), GREEDY)
    assert engine.stats()["graph_steps"] > 0


@pytest.mark.parametrize("scheme", [None, "int8", "int4", "fp8"])
@pytest.mark.parametrize("name", ["llama-4-scout", "llama-4-maverick"])
def test_steps_of_quantized_models_are_captured(
    name: str, scheme: str | None, tmp_path: Path, cubins: Path
) -> None:
    """With the published heads; prompts and steps agree, and the fused kernels compute steps.

    The experts of one tensor stay as they are; the shared one is quantized and takes two kernels.
    """
    shape = {
        **DUMMY_CONFIGS[name],
        "vocab_size": 320,
        "hidden_size": 512,
        "intermediate_size": 256,
        "intermediate_size_mlp": 1024,
        "num_hidden_layers": 4,
        "num_local_experts": 12,
        "attention_chunk_size": 48,
        "max_position_embeddings": 1024,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shape))
    dummy = str(path) if scheme is None else f"{path}:{scheme}"
    config = {"dummy": dummy, "dtype": "bfloat16", "ctx_size_tokens": 512}
    engine = gpu_engine(tmp_path, cubins, **config)
    is_packed = isinstance(engine.decoder.weights.layers[0].o, GpuQuantizedWeight)
    assert is_packed == (scheme is not None)
    decode = engine.graph_decode
    assert isinstance(decode, AsyncDecode) and decode.runner.uses_fused_kernels(1)
    ids = tiny.random_ids(90, seed=5)
    prompt = decode_logits(engine, ids)
    steps = decode_logits(gpu_engine(tmp_path, cubins, chunk_tokens=1, **config), ids)
    assert torch.linalg.norm(steps - prompt) <= 0.06 * torch.linalg.norm(prompt)
    tiny.run(engine, prompts(3), GREEDY)
    assert engine.stats()["graph_steps"] > 0
