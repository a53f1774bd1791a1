"""GPT-OSS with MXFP4 experts on a GPU: they stay packed, and decode steps are captured."""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from tests.support import tiny
from tests.support.expert_models import make_mxfp4
from tests.support.gpu_engines import decode_logits, gpu_engine

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mxfp4")
    make_mxfp4(path)
    return path


def test_experts_stay_packed_and_steps_are_captured(folder: Path, tmp_path: Path) -> None:
    engine = gpu_engine(folder, tmp_path, dtype="bfloat16")
    for layer in engine.decoder.weights.layers:
        assert layer.experts is not None
        for expert in layer.experts.each:
            for weight in (expert.gate_up, expert.down):
                assert weight.description == "mxfp4 in groups of 32, CUDA kernels"
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    tiny.run(engine, prompts, GREEDY)
    assert engine.stats()["graph_steps"] > 0


def test_fp32_ids_equal_the_cpu(folder: Path, tmp_path: Path) -> None:
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    engine = gpu_engine(folder, tmp_path, dtype="float32")
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts, GREEDY)
    assert tiny.run(engine, prompts, GREEDY)[0] == on_cpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chunk_tokens", [None, 1])
def test_half_precision_is_close_to_fp32(
    folder: Path, tmp_path: Path, dtype: str, chunk_tokens: int | None
) -> None:
    """A prompt in one chunk, and token by token as decode steps: as in `test_engine_gpu`."""
    ids = tiny.random_ids(40, seed=5)
    exact = decode_logits(gpu_engine(folder, tmp_path, dtype="float32", kernels=False), ids)
    engine = gpu_engine(folder, tmp_path, dtype=dtype, chunk_tokens=chunk_tokens)
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= 0.06 * torch.linalg.norm(exact)
