"""Gemma 4, Llama 4, Gemma 3n and Kimi Linear on a GPU, with graphs and without.

With heads of 256 and 512 elements; with chunks of attention and weighted inputs of experts; with
streams that torch mixes; with decays of each element of a key and latents without rotation.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from tests.support import gemma3n, gemma4, kimi, llama4, tiny
from tests.support.gpu_engines import decode_logits, gpu_engine, step_logits
from tests.support.speculation import use_oracle

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24)
PLAIN = SamplingParams(temperature=0, max_tokens=24, speculate="off")
HALVES = ("bfloat16", "float16")
_FUNCTIONS: dict[str, Callable[[Path], object]] = {
    **{f"gemma4-{n}": partial(gemma4.make, n, **gemma4.HEADS) for n in gemma4.VARIANTS},
    **{f"llama4-{n}": partial(llama4.make, n, **llama4.HEADS) for n in llama4.VARIANTS},
    "gemma3n-tiny": gemma3n.make,
    "gemma3n-wide": partial(gemma3n.make, **gemma3n.HEADS),
    "kimi": kimi.make,
}
MODELS: Mapping[str, Callable[[Path], object]] = MappingProxyType(_FUNCTIONS)
# Of logits in 16 bits. Torch's operators on a CPU are off by up to 0.1 and 0.01 with Kimi Linear.
KIMI_TOLERANCE: Mapping[str, float] = MappingProxyType({"bfloat16": 0.15, "float16": 0.03})
TOLERANCE = 0.06
# Smaller sizes of published models.
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gemma-4": {
            "vocab_size_per_layer_input": 320,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_experts": 12,
            "moe_intermediate_size": 256,
            "num_kv_shared_layers": 0,
        },
        # The experts of one tensor stay as they are; the shared one is quantized and takes two
        # kernels.
        "llama-4": {
            "intermediate_size": 256,
            "intermediate_size_mlp": 1024,
            "num_hidden_layers": 4,
            "num_local_experts": 12,
            "attention_chunk_size": 48,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    }
)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    MODELS[request.param](path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def models(*families: str) -> list[str]:
    return [name for name in MODELS if name.startswith(families)]


def of(*families: str) -> pytest.MarkDecorator:
    """Run a test with the models of these families only."""
    return pytest.mark.parametrize("folder", models(*families), indirect=True)


def prompts(count: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(1 + 13 * i % 60, seed=i) for i in range(count)}


def run_alone(engine: Engine, params: SamplingParams) -> list[list[int]]:
    return [tiny.run(engine, {i: ids}, params)[0][i] for i, ids in prompts(5).items()]


def exact_logits(folder: Path, cubins: Path, *rows: list[int]) -> Tensor:
    """Return the logits of torch's operators in fp32: fp64 [rows, vocab_size]."""
    engine = gpu_engine(folder, cubins, dtype="float32", kernels=False)
    return torch.stack([decode_logits(engine, ids) for ids in rows])


def error(found: Tensor, exact: Tensor) -> float:
    """Return the largest error of a row, relative to its length."""
    errors = torch.linalg.norm(found - exact, dim=-1) / torch.linalg.norm(exact, dim=-1)
    return float(errors.max())


def tolerance(folder: Path, dtype: str) -> float:
    if dtype == "float32":
        return 1e-3
    return KIMI_TOLERANCE[dtype] if folder.name.startswith("kimi") else TOLERANCE


@of("gemma4", "llama4", "gemma3n")
@pytest.mark.parametrize("path", ["graphs", "no graphs", "torch"])
def test_fp32_ids_equal_the_cpu(folder: Path, cubins: Path, path: str) -> None:
    """Alone and batched: chunks of prompts, decode steps, and both mixed."""
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts(5), PLAIN)
    settings: dict[str, Any] = {"kernels": False} if path == "torch" else {}
    engine = gpu_engine(folder, cubins, dtype="float32", chunk_tokens=16, **settings)
    assert (engine.gpu is None) == (path == "torch")
    if path == "no graphs":
        engine.use_graphs(replace(engine.graphs, decode=None))
    together, _ = tiny.run(engine, prompts(5), PLAIN)
    assert together == on_cpu
    assert run_alone(engine, PLAIN) == list(on_cpu.values())
    assert (engine.stats().get("graph_steps", 0) > 0) == (path == "graphs")


@of("gemma4", "llama4")
def test_more_rows_than_the_fused_kernels_take(folder: Path, cubins: Path) -> None:
    settings = {"max_num_seqs": 21, "cache_tokens": 64 * 21}
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), prompts(21), params)
    engine = gpu_engine(folder, cubins, dtype="float32", **settings)
    assert tiny.run(engine, prompts(21), params)[0] == on_cpu
    assert engine.stats()["graph_steps"] > 0


@of("gemma4", "llama4", "gemma3n")
def test_captured_prompts_give_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins, dtype="float32")
    before, _ = tiny.run(engine, prompts(5), GREEDY)
    while engine.can_prepare:
        engine.prepare()
    assert engine.graphs.prefill is not None and engine.graphs.prefill.is_captured(20)
    assert run_alone(engine, GREEDY) == list(before.values())


@of("gemma4", "llama4", "gemma3n")
def test_verified_tokens_give_the_same_ids(folder: Path, cubins: Path) -> None:
    """An answer that repeats itself is proposed and verified in captured steps.

    In Llama 4 the rows of such a step are in different chunks of attention.
    """
    engine = gpu_engine(folder, cubins, dtype="float32")
    ids = tiny.random_ids(12, seed=3) * 4
    plain, _ = tiny.run(
        engine, {1: ids}, SamplingParams(temperature=0, max_tokens=40, speculate="off")
    )
    assert tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=40))[0] == plain


@of("kimi")
@pytest.mark.parametrize("dtype", HALVES)
def test_verified_tokens_in_16_bits(folder: Path, cubins: Path, dtype: str) -> None:
    """Rounding may decide between two ids with nearly equal logits, but not soon."""
    prompt, params = {1: tiny.random_ids(20, seed=5)}, replace(PLAIN, max_tokens=40)
    plain, _ = tiny.run(gpu_engine(folder, cubins, dtype=dtype), prompt, params)
    engine = use_oracle(gpu_engine(folder, cubins, dtype=dtype), plain, eager=True)
    assert engine.graphs.verification is not None
    ids, ends = tiny.run(engine, prompt, replace(params, speculate="auto"))
    engine.scheduler.check_integrity()
    assert ids[1][:10] == plain[1][:10]
    assert ends[1].speculated is not None and ends[1].speculated.num_accepted > 5


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("chunk_tokens", [None, 16, 1])
def test_half_precision_is_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, chunk_tokens: int | None
) -> None:
    """A prompt in one chunk, in several, and token by token as decode steps."""
    ids = tiny.random_ids(90, seed=5)
    engine = gpu_engine(folder, cubins, dtype=dtype, chunk_tokens=chunk_tokens)
    assert engine.gpu is not None
    (exact,) = exact_logits(folder, cubins, ids)
    assert error(decode_logits(engine, ids), exact) <= tolerance(folder, dtype)


@pytest.mark.parametrize(
    ("folder", "dtype"),
    [
        *((name, dtype) for name in models("gemma4", "llama4") for dtype in (*HALVES, "float32")),
        *((name, "float32") for name in models("gemma3n")),
        *(("kimi", dtype) for dtype in HALVES),
    ],
    indirect=["folder"],
)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_captured_steps_are_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, num_rows: int
) -> None:
    """The logits of a captured step, for one row and for several."""
    engine = gpu_engine(folder, cubins, dtype=dtype)
    assert engine.graphs.decode is not None
    rows, found = step_logits(engine, num_rows)
    assert error(found, exact_logits(folder, cubins, *rows)) <= tolerance(folder, dtype)
    tiny.run(engine, {1: rows[0]}, SamplingParams(temperature=0, max_tokens=8))
    assert engine.stats()["graph_steps"] > 0


@pytest.mark.parametrize(
    ("folder", "kv_dtype"),
    [
        *((name, scheme) for name in models("gemma4") for scheme in ("int8", "fp8")),
        *((name, scheme) for name in models("llama4") for scheme in ("int8", "fp8", "int5")),
    ],
    indirect=["folder"],
)
def test_quantized_cache_is_near_the_plain_one(folder: Path, cubins: Path, kv_dtype: str) -> None:
    ids = tiny.random_ids(60, seed=7)
    exact = decode_logits(gpu_engine(folder, cubins, dtype="bfloat16"), ids)
    engine = gpu_engine(folder, cubins, dtype="bfloat16", kv_dtype=kv_dtype)
    assert engine.gpu is not None
    assert error(decode_logits(engine, ids), exact) <= 0.1
    tiny.run(engine, prompts(3), GREEDY)
    assert engine.stats()["graph_steps"] > 0


@pytest.mark.parametrize("scheme", [None, "int8", "int4", "fp8"])
@pytest.mark.parametrize(
    "name", ["gemma-4-e4b", "gemma-4-26b-a4b", "llama-4-scout", "llama-4-maverick"]
)
def test_steps_of_quantized_models_are_captured(
    name: str, scheme: str | None, tmp_path: Path, cubins: Path
) -> None:
    """With the published heads; prompts and steps agree.

    Not in bf16, whose rounding may change which expert a router chooses.
    """
    sizes = {"vocab_size": 320, "hidden_size": 512, "max_position_embeddings": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DUMMY_CONFIGS[name], **sizes, **SHAPES[name[:7]]}))
    dummy = str(path) if scheme is None else f"{path}:{scheme}"
    config = {"dummy": dummy, "dtype": "float16", "ctx_size_tokens": 512}
    engine = gpu_engine(tmp_path, cubins, **config)
    layer = engine.decoder.weights.layers[0]
    matrix = layer.down if name.startswith("gemma") else layer.o  # Scout's MLPs are experts
    assert isinstance(matrix, GpuQuantizedWeight) == (scheme is not None)
    ids = tiny.random_ids(90, seed=5)
    prompt = decode_logits(engine, ids)
    steps = decode_logits(gpu_engine(tmp_path, cubins, chunk_tokens=1, **config), ids)
    assert error(steps, prompt) <= TOLERANCE
    tiny.run(engine, prompts(3), GREEDY)
    assert engine.stats()["graph_steps"] > 0
