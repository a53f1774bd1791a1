"""Models on a GPU with experts in main memory: their ids are those of one device."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.expert_models import EXPERT_MODELS
from tests.support.gpu_engines import decode_logits, gpu_engine, step_logits
from tests.support.speculation import use_oracle

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=24, speculate="off")


@pytest.fixture(scope="module", params=EXPERT_MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    EXPERT_MODELS[request.param](path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def prompts(num: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(5 + 13 * i % 60, seed=i) for i in range(num)}


def num_layers(folder: Path) -> int:
    """Return the number of layers with experts."""
    return sum(layer.moe is not None for layer in Model.open(folder).config.layers)


def ids(engine: Engine, num: int = 4) -> list[list[int]]:
    return list(tiny.run(engine, prompts(num), GREEDY)[0].values())


def alone(engine: Engine, num: int = 4) -> list[list[int]]:
    return [tiny.run(engine, {i: own}, GREEDY)[0][i] for i, own in prompts(num).items()]


@pytest.mark.parametrize("num_host", [1, None])
def test_fp32_ids_equal_the_cpu(folder: Path, cubins: Path, num_host: int | None) -> None:
    """With graphs and without, together, alone, and from the prefix cache."""
    expected = list(tiny.run(tiny.engine(folder), prompts(4), GREEDY)[0].values())
    num = num_host or num_layers(folder)
    engine = gpu_engine(folder, cubins, dtype="float32", chunk_tokens=16, cpu_experts=num)
    assert engine.info.host_bytes > 0
    assert ids(engine) == alone(engine) == expected
    if not engine.info.replays_steps:  # the GPU's kernels have no fp32 with MXFP4
        assert "mxfp4" in folder.name and num < num_layers(folder)
        return
    assert engine.stats()["graph_steps"] > 0
    engine.use_graphs(replace(engine.graphs, decode=None, verification=None))
    steps = engine.stats()["graph_steps"]
    assert ids(engine) == expected
    assert engine.stats()["graph_steps"] == steps


def test_many_rows(folder: Path, cubins: Path) -> None:
    """More than the fused kernels take, in captured steps."""
    settings = {"max_num_seqs": 21, "cache_tokens": 64 * 21, "dtype": "float32"}
    params = SamplingParams(temperature=0, max_tokens=8)
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), prompts(21), params)
    engine = gpu_engine(folder, cubins, cpu_experts=num_layers(folder), **settings)
    assert tiny.run(engine, prompts(21), params)[0] == on_cpu
    assert engine.stats()["graph_steps"] > 0


def test_captured_prompts_and_verified_tokens(folder: Path, cubins: Path) -> None:
    settings = {"dtype": "float32", "cpu_experts": num_layers(folder)}
    engine = gpu_engine(folder, cubins, **settings)
    before, _ = tiny.run(engine, prompts(4), GREEDY)
    while engine.can_prepare:
        engine.prepare()
    assert engine.graphs.prefill is not None and engine.graphs.prefill.is_captured(20)
    assert alone(engine) == list(before.values())
    engine = use_oracle(gpu_engine(folder, cubins, **settings), before)
    found, _ = tiny.run(engine, prompts(4), replace(GREEDY, speculate="auto"))
    assert found == before


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_as_close_to_fp32_as_on_one_device(
    folder: Path, cubins: Path, dtype: str
) -> None:
    """A prompt, and captured steps of two rows."""
    tokens = tiny.random_ids(40, seed=5)
    exact = gpu_engine(folder, cubins, dtype="float32", kernels=False)
    errors = []
    for num_host in (0, 2):
        engine = gpu_engine(folder, cubins, dtype=dtype, cpu_experts=num_host)
        rows, steps = step_logits(engine, 2)
        expected = torch.stack([decode_logits(exact, row) for row in [tokens, *rows]])
        found = torch.cat([decode_logits(engine, tokens).unsqueeze(0), steps])
        norms = torch.linalg.norm(found - expected, dim=1) / torch.linalg.norm(expected, dim=1)
        errors.append(float(norms.max()))
    assert errors[1] <= max(0.06, 1.5 * errors[0])
